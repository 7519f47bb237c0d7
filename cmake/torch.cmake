# libtorch, from the PyTorch that OPTIMUS_TORCH names (the folder `torch` of an installed package). Only headers and
# libraries are taken: PyTorch's own CMake files would bring flags of their own. Its headers come last (-idirafter), so that
# the fmt it ships does not shadow the distribution's: one fmt in all of the program.
set(OPTIMUS_TORCH "" CACHE PATH "the folder of an installed PyTorch >= 2.11; empty: only the pure half is built")
option(OPTIMUS_NATIVE "use all instructions of this machine's processor in kernels" ON)

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
  # With a PyTorch that has CUDA the kernels in CUDA C++ are built too; that needs nvcc. Without either, all runs on processors.
  if(TORCH_CUDA_LIBRARY)
    include(CheckLanguage)
    check_language(CUDA)
    if(CMAKE_CUDA_COMPILER)
      # Machine code for Hopper, and PTX for any card from Ampere on.
      set(CMAKE_CUDA_ARCHITECTURES 90a-real 80-virtual)
      enable_language(CUDA)
      set(CMAKE_CUDA_STANDARD 20)
      # CMake 3.25 knows no nvcc that can, unless it is told.
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
      # Headers of CUDA's libraries that the toolkit lacks: PyTorch's packages bring them.
      file(GLOB cuda_package ${OPTIMUS_TORCH}/../nvidia/cu[0-9]*/include)
      foreach(folder ${cuda_package})
        target_compile_options(optimus_torch INTERFACE "SHELL:-idirafter ${folder}")
      endforeach()
      # cuBLASLt: the one that PyTorch loads, where its packages brought it; else the toolkit's.
      file(GLOB packages ${OPTIMUS_TORCH}/../nvidia/cu*)
      find_library(CUBLASLT_LIBRARY NAMES cublasLt libcublasLt.so.13 libcublasLt.so.12 PATHS ${packages} PATH_SUFFIXES lib NO_DEFAULT_PATH)
      if(NOT CUBLASLT_LIBRARY)
        set(CUBLASLT_LIBRARY CUDA::cublasLt)
      endif()
      target_link_libraries(optimus_torch INTERFACE ${CUBLASLT_LIBRARY} ${CMAKE_DL_LIBS})
      # NCCL: the one that PyTorch loads. Without its header several GPUs talk through the processors' memory.
      find_path(NCCL_INCLUDE nccl.h HINTS ${OPTIMUS_TORCH}/../nvidia/nccl/include)
      find_library(NCCL_LIBRARY NAMES libnccl.so.2 nccl HINTS ${OPTIMUS_TORCH}/../nvidia/nccl/lib)
      if(NCCL_INCLUDE AND NCCL_LIBRARY)
        target_compile_definitions(optimus_torch INTERFACE OPTIMUS_NCCL)
        target_compile_options(optimus_torch INTERFACE "SHELL:-idirafter ${NCCL_INCLUDE}")
        target_link_libraries(optimus_torch INTERFACE ${NCCL_LIBRARY})
      else()
        message(STATUS "no NCCL header: collectives between GPUs go through the processors' memory")
      endif()
      # cuDNN without copies (kernels/attention_cudnn.h) needs two sets of headers: its own, which PyTorch's packages bring, and
      # its frontend's (pip install nvidia-cudnn-frontend).
      set(OPTIMUS_CUDNN_FRONTEND "" CACHE PATH "the folder of cudnn_frontend.h, where it is not beside PyTorch")
      find_path(CUDNN_FRONTEND_INCLUDE cudnn_frontend.h HINTS ${OPTIMUS_CUDNN_FRONTEND} ${OPTIMUS_TORCH}/../include)
      find_path(CUDNN_INCLUDE cudnn.h HINTS ${OPTIMUS_TORCH}/../nvidia/cudnn/include)
      if(CUDNN_FRONTEND_INCLUDE AND CUDNN_INCLUDE)
        target_compile_definitions(optimus_torch INTERFACE OPTIMUS_CUDNN)
        target_compile_options(optimus_torch INTERFACE
          "SHELL:-idirafter ${CUDNN_FRONTEND_INCLUDE}" "SHELL:-idirafter ${CUDNN_INCLUDE}")
      else()
        message(STATUS "no cuDNN frontend (pip install nvidia-cudnn-frontend): attention goes through PyTorch, with copies")
      endif()
    else()
      message(STATUS "PyTorch has CUDA, but there is no nvcc: building for processors only")
    endif()
  endif()
  target_link_options(optimus_torch INTERFACE -Wl,-rpath,${OPTIMUS_TORCH}/lib)
endif()
