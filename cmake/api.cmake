# The public libraries: liboptimus_plan (planner and simulator) and liboptimus (training, by worker processes of optimus-engine).
# Neither needs libtorch. They export only what include/optimus/ declares, so that their dependencies stay internal.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

function(add_api_library target name)
  add_library(${target} SHARED ${ARGN})
  set_target_properties(${target} PROPERTIES EXPORT_NAME ${name} CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON
    VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR} INSTALL_RPATH "$ORIGIN")
  target_include_directories(${target} PUBLIC
    $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>
    PRIVATE src)
  target_compile_features(${target} PUBLIC cxx_std_20)
  target_link_options(${target} PRIVATE LINKER:--exclude-libs,ALL)
  target_link_libraries(${target} PRIVATE $<BUILD_INTERFACE:optimus_planner>)
  target_precompile_headers(${target} REUSE_FROM optimus_pure)
  install(TARGETS ${target} EXPORT optimusTargets LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
endfunction()

set(api ${PROJECT_SOURCE_DIR}/src/api)
# Both libraries compile plan_argument.cpp, because they only export what include/optimus/ declares.
add_api_library(optimus_plan_api plan ${api}/error.cpp ${api}/option_map.cpp ${api}/plan.cpp ${api}/plan_argument.cpp)
set_target_properties(optimus_plan_api PROPERTIES OUTPUT_NAME optimus_plan)
add_api_library(optimus_api optimus ${api}/engine_process.cpp ${api}/plan_argument.cpp ${api}/run.cpp ${api}/run_follower.cpp)
set_target_properties(optimus_api PROPERTIES OUTPUT_NAME optimus)
target_link_libraries(optimus_api PUBLIC optimus_plan_api PRIVATE ${CMAKE_DL_LIBS})

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/optimus DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h")
install(TARGETS optimus RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
if(TARGET optimus-engine)
  install(TARGETS optimus-engine RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR})
  # The worker program uses the PyTorch that it was built against.
  set_target_properties(optimus-engine PROPERTIES INSTALL_RPATH "${OPTIMUS_TORCH}/lib")
endif()
set(package ${CMAKE_INSTALL_LIBDIR}/cmake/optimus)
install(EXPORT optimusTargets NAMESPACE optimus:: DESTINATION ${package})
configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/optimusConfig.cmake.in ${PROJECT_BINARY_DIR}/optimusConfig.cmake
  INSTALL_DESTINATION ${package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/optimusConfigVersion.cmake COMPATIBILITY SameMajorVersion)
install(FILES ${PROJECT_BINARY_DIR}/optimusConfig.cmake ${PROJECT_BINARY_DIR}/optimusConfigVersion.cmake DESTINATION ${package})
configure_file(${CMAKE_CURRENT_LIST_DIR}/optimus.pc.in ${PROJECT_BINARY_DIR}/optimus.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/optimus.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
