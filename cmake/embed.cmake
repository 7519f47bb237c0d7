# embed(FILE NAME): writes the bytes of FILE to build/generated/NAME, to be included inside braces. Generated when the build is configured,
# which is repeated when FILE changes.
function(embed file name)
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
  file(READ ${file} bytes HEX)
  string(REGEX REPLACE "(..)" "0x\\1," bytes "${bytes}")
  file(GENERATE OUTPUT ${PROJECT_BINARY_DIR}/generated/${name} CONTENT "${bytes}\n")
endfunction()
