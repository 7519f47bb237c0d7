# libtorch, from the PyTorch that OPTIMUS_TORCH names (the folder `torch` of an installed package). Only headers and
# libraries are used: PyTorch's own CMake files would add their own flags. Its headers come last (-idirafter), so that
# the fmt that it ships does not shadow the distribution's: the whole program uses one fmt.
set(OPTIMUS_TORCH "" CACHE PATH "the folder of an installed PyTorch >= 2.11; empty: only the code without libtorch is built")
option(OPTIMUS_NATIVE "use all instructions of this machine's CPU in kernels" ON)

if(OPTIMUS_TORCH)
  find_library(TORCH_CPU_LIBRARY torch_cpu PATHS ${OPTIMUS_TORCH}/lib NO_DEFAULT_PATH REQUIRED)
  find_library(C10_LIBRARY c10 PATHS ${OPTIMUS_TORCH}/lib NO_DEFAULT_PATH REQUIRED)
  find_library(TORCH_CUDA_LIBRARY torch_cuda PATHS ${OPTIMUS_TORCH}/lib NO_DEFAULT_PATH)
  find_library(C10_CUDA_LIBRARY c10_cuda PATHS ${OPTIMUS_TORCH}/lib NO_DEFAULT_PATH)
  file(GLOB gomp ${OPTIMUS_TORCH}/lib/libgomp*.so*)
  list(GET gomp 0 gomp)

  add_library(optimus_torch INTERFACE)
  target_compile_options(optimus_torch INTERFACE
    "SHELL:-idirafter ${OPTIMUS_TORCH}/include" "SHELL:-idirafter ${OPTIMUS_TORCH}/include/torch/csrc/api/include"
    -DAT_PER_OPERATOR_HEADERS -fopenmp)
  target_link_libraries(optimus_torch INTERFACE ${TORCH_CPU_LIBRARY} ${C10_LIBRARY} ${gomp})
  # If PyTorch has CUDA, the CUDA C++ kernels are built too, which needs nvcc. Otherwise everything runs on CPUs.
  if(TORCH_CUDA_LIBRARY)
    include(CheckLanguage)
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
      # Machine code for Hopper, and PTX for all GPUs since Ampere.
      set(CMAKE_CUDA_ARCHITECTURES 90a-real 80-virtual)
      enable_language(CUDA)
      set(CMAKE_CUDA_STANDARD 20)
      # CMake 3.25 does not know that nvcc supports C++20.
      foreach(kind STANDARD EXTENSION)
        if(NOT CMAKE_CUDA20_${kind}_COMPILE_OPTION)
          set(CMAKE_CUDA20_${kind}_COMPILE_OPTION "-std=c++20")
        endif()
      endforeach()
      set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -DNDEBUG")
      find_package(CUDAToolkit REQUIRED)
      set(OPTIMUS_HAS_CUDA ON)
      target_link_libraries(optimus_torch INTERFACE -Wl,--no-as-needed ${TORCH_CUDA_LIBRARY} ${C10_CUDA_LIBRARY} -Wl,--as-needed
        CUDA::cudart)
      target_compile_definitions(optimus_torch INTERFACE OPTIMUS_CUDA)
      # Headers of CUDA libraries that the toolkit lacks come from PyTorch's packages.
      file(GLOB cuda_package ${OPTIMUS_TORCH}/../nvidia/cu[0-9]*/include)
      foreach(folder ${cuda_package})
        target_compile_options(optimus_torch INTERFACE "SHELL:-idirafter ${folder}")
      endforeach()
      # cuBLASLt: the one that PyTorch loads if its packages include it; otherwise the toolkit's.
      file(GLOB packages ${OPTIMUS_TORCH}/../nvidia/cu*)
      find_library(CUBLASLT_LIBRARY NAMES cublasLt libcublasLt.so.13 libcublasLt.so.12 PATHS ${packages} PATH_SUFFIXES lib NO_DEFAULT_PATH)
      if(NOT CUBLASLT_LIBRARY)
        set(CUBLASLT_LIBRARY CUDA::cublasLt)
      endif()
      target_link_libraries(optimus_torch INTERFACE ${CUBLASLT_LIBRARY} ${CMAKE_DL_LIBS})
      # NCCL: the one that PyTorch loads. Without its header, GPUs communicate through host memory.
      find_path(NCCL_INCLUDE nccl.h HINTS ${OPTIMUS_TORCH}/../nvidia/nccl/include)
      find_library(NCCL_LIBRARY NAMES libnccl.so.2 nccl HINTS ${OPTIMUS_TORCH}/../nvidia/nccl/lib)
      if(NCCL_INCLUDE AND NCCL_LIBRARY)
        target_compile_definitions(optimus_torch INTERFACE OPTIMUS_NCCL)
        target_compile_options(optimus_torch INTERFACE "SHELL:-idirafter ${NCCL_INCLUDE}")
        target_link_libraries(optimus_torch INTERFACE ${NCCL_LIBRARY})
      else()
        message(STATUS "no NCCL header: collectives between GPUs go through host memory")
      endif()
      # cuDNN attention without copies (kernels/attention_cudnn.h) needs two sets of headers: its own, from PyTorch's packages, and
      # those of its frontend (pip install nvidia-cudnn-frontend).
      set(OPTIMUS_CUDNN_FRONTEND "" CACHE PATH "the folder of cudnn_frontend.h, if it is not next to PyTorch")
      find_path(CUDNN_FRONTEND_INCLUDE cudnn_frontend.h HINTS ${OPTIMUS_CUDNN_FRONTEND} ${OPTIMUS_TORCH}/../include)
      find_path(CUDNN_INCLUDE cudnn.h HINTS ${OPTIMUS_TORCH}/../nvidia/cudnn/include)
      if(CUDNN_FRONTEND_INCLUDE AND CUDNN_INCLUDE)
        target_compile_definitions(optimus_torch INTERFACE OPTIMUS_CUDNN)
        target_compile_options(optimus_torch INTERFACE
          "SHELL:-idirafter ${CUDNN_FRONTEND_INCLUDE}" "SHELL:-idirafter ${CUDNN_INCLUDE}")
      else()
        message(STATUS "no cuDNN frontend (pip install nvidia-cudnn-frontend): attention uses PyTorch, with copies")
      endif()
    else()
      message(STATUS "PyTorch has CUDA, but nvcc was not found: building for CPUs only")
    endif()
  endif()
  target_link_options(optimus_torch INTERFACE -Wl,-rpath,${OPTIMUS_TORCH}/lib)
endif()
