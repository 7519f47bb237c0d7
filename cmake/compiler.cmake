# Language level, warnings, sanitizers, and ccache and a fast linker if available.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_CXX_FLAGS_RELEASE "-O2 -DNDEBUG")
if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()

find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE_PROGRAM})
endif()

add_library(optimus_flags INTERFACE)
target_compile_options(optimus_flags INTERFACE -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wnon-virtual-dtor
  -Wimplicit-fallthrough -Wno-sign-conversion -Werror)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # Precompiled headers must stay cacheable. The three warnings are false positives of g++ 12 on inlined strings and
  # expected-like types; clang checks the same code in the asan build.
  target_compile_options(optimus_flags INTERFACE -fpch-preprocess -Wno-maybe-uninitialized -Wno-restrict -Wno-stringop-overflow)
  # false positives: references into a document that are obtained through a view of it
  if(CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    target_compile_options(optimus_flags INTERFACE -Wno-dangling-reference)
  endif()
endif()
# Not mold: Debian's version 1.10 writes programs that the loader rejects on x86_64, and sometimes never finishes on aarch64.
find_program(LLD_PROGRAM ld.lld)
if(LLD_PROGRAM)
  target_link_options(optimus_flags INTERFACE -fuse-ld=lld)
endif()
if(OPTIMUS_SANITIZE)
  target_compile_options(optimus_flags INTERFACE -fsanitize=${OPTIMUS_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(optimus_flags INTERFACE -fsanitize=${OPTIMUS_SANITIZE})
endif()

# join_folders(TARGET [BATCH N] SOURCE…): unity builds. Most of the compile time of a small file is spent on headers and templates that
# its neighbours use too, so the files of one folder are compiled as one, or N at a time to use all cores. Names in unnamed namespaces of
# a folder must therefore differ.
function(join_folders target)
  cmake_parse_arguments(PARSE_ARGV 1 join "" BATCH "")
  if(NOT OPTIMUS_JOINT)
    return()
  endif()
  set_target_properties(${target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_MODE GROUP)
  foreach(source ${join_UNPARSED_ARGUMENTS})
    get_filename_component(folder ${source} DIRECTORY)
    get_filename_component(folder ${folder} NAME)
    set(group ${folder})
    if(join_BATCH)
      math(EXPR number_${folder} "${number_${folder}} + 1")
      math(EXPR batch "(${number_${folder}} - 1) / ${join_BATCH} + 1")
      set(group ${folder}_${batch})
    endif()
    set_source_files_properties(${source} PROPERTIES UNITY_GROUP ${group})
  endforeach()
endfunction()
