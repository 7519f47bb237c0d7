# Third-party libraries of the code without libtorch, all from the distribution's packages. fmt is linked, not header-only: header-only
# fmt costs 6 s per source file. (Sources that include libtorch use the newer fmt that ships with it, header-only.)
find_package(PkgConfig REQUIRED)
find_package(Threads REQUIRED)
find_package(nlohmann_json REQUIRED)
find_package(fmt REQUIRED)
pkg_check_modules(PCRE2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(UTF8PROC REQUIRED IMPORTED_TARGET libutf8proc)
find_path(XXHASH_INCLUDE xxhash.h REQUIRED)
find_path(TOMLPLUSPLUS_INCLUDE toml++/toml.h REQUIRED)
find_path(EXPECTED_INCLUDE tl/expected.hpp REQUIRED)
find_path(CLI11_INCLUDE CLI/CLI.hpp REQUIRED)

add_library(optimus_libraries INTERFACE)
target_link_libraries(optimus_libraries INTERFACE fmt::fmt nlohmann_json::nlohmann_json PkgConfig::PCRE2
  PkgConfig::UTF8PROC Threads::Threads)
