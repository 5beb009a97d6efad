# The libraries that attn depends on: installed copies, otherwise pinned releases from GitHub.
#
# FETCHCONTENT_SOURCE_DIR_<NAME> (EIGEN3, NLOHMANN_JSON, GOOGLETEST, BENCHMARK, CLI11, UTF8PROC) names an unpacked
# source tree to use instead of both, for instance without a network.
#
# A dependency is declared only if it is used: FetchContent keeps the first declaration of a name, and a project that
# adds attn as a subdirectory may use another version of googletest or benchmark. The parent's declaration may also come
# first.
include(FetchContent)

# Makes `target` of the header-only `name`, declared with the remaining arguments, available; `include_dir` is the
# folder of its headers in its sources. A target of the parent project is used unchanged.
#
# SOURCE_SUBDIR none unpacks the sources without running their build: a header-only library needs none of it, and an
# exported package may contain an imported target, but not a target of that build.
macro(attn_header_dependency name target include_dir)
  if(NOT TARGET ${target})
    FetchContent_Declare(${name} DOWNLOAD_EXTRACT_TIMESTAMP ON SOURCE_SUBDIR none ${ARGN})
    FetchContent_MakeAvailable(${name})
  endif()
  if(NOT TARGET ${target})
    FetchContent_GetProperties(${name} SOURCE_DIR ${name}_SOURCE_DIR)
    add_library(${target} INTERFACE IMPORTED GLOBAL)
    target_include_directories(${target} INTERFACE "${${name}_SOURCE_DIR}/${include_dir}")
  endif()
endmacro()

# Makes a dependency with a build of its own available. The compiler must not warn about its headers.
macro(attn_built_dependency name)
  set(CMAKE_POLICY_DEFAULT_CMP0077 NEW)  # so that even an old one heeds the options set here
  FetchContent_MakeAvailable(${name})
  foreach(target ${ARGN})
    if(TARGET ${target})
      get_target_property(include_dirs ${target} INTERFACE_INCLUDE_DIRECTORIES)
      set_property(TARGET ${target} PROPERTY INTERFACE_SYSTEM_INCLUDE_DIRECTORIES "${include_dirs}")
    endif()
  endforeach()
endmacro()

# GLOBAL, so that a project which adds attn as a subdirectory sees what attn::attn links. Without a version, since
# Eigen's package file refuses version 5 for a request of 3.4.
attn_header_dependency(Eigen3 Eigen3::Eigen .
  # The mirror, since the checksums of GitLab's archives have changed in the past.
  URL https://github.com/eigen-mirror/eigen/archive/refs/tags/3.4.0.tar.gz
  URL_HASH SHA256=8586084f71f9bde545ee7fa6d00288b264a2b7ac3607b974e54d13e7162c1c72
  FIND_PACKAGE_ARGS NO_MODULE GLOBAL)
if(Eigen3_FOUND AND Eigen3_VERSION VERSION_LESS 3.4)
  message(FATAL_ERROR "attn needs Eigen 3.4 or newer; ${Eigen3_DIR} has ${Eigen3_VERSION}. "
    "Eigen3_DIR names another, FETCHCONTENT_TRY_FIND_PACKAGE_MODE=NEVER downloads one.")
endif()

if(ATTN_IO)
  attn_header_dependency(nlohmann_json nlohmann_json::nlohmann_json include
    URL https://github.com/nlohmann/json/releases/download/v3.12.0/json.tar.xz
    URL_HASH SHA256=42f6e95cad6ec532fd372391373363b62a14af6d771056dbfc86160e6dfff7aa
    FIND_PACKAGE_ARGS 3.10 GLOBAL)
endif()

if(ATTN_USE_OPENMP)
  find_package(OpenMP QUIET GLOBAL COMPONENTS CXX)
endif()

if(ATTN_BUILD_TESTS)
  FetchContent_Declare(googletest
    URL https://github.com/google/googletest/archive/refs/tags/v1.14.0.tar.gz
    URL_HASH SHA256=8ad598c73ad796e0d8280b082cebd82a630d73e73cd3c70057938a6501bba5d7
    DOWNLOAD_EXTRACT_TIMESTAMP ON
    FIND_PACKAGE_ARGS NAMES GTest GLOBAL)
  set(INSTALL_GTEST OFF)
  attn_built_dependency(googletest gtest gmock)
endif()

if(ATTN_BUILD_BENCHMARKS)
  FetchContent_Declare(benchmark
    URL https://github.com/google/benchmark/archive/refs/tags/v1.8.3.tar.gz
    URL_HASH SHA256=6bc180a57d23d4d9515519f92b0c83d61b05b5bab188961f36ac7b06b0d9e9ce
    DOWNLOAD_EXTRACT_TIMESTAMP ON
    FIND_PACKAGE_ARGS GLOBAL)
  set(BENCHMARK_ENABLE_TESTING OFF)
  set(BENCHMARK_ENABLE_INSTALL OFF)
  set(BENCHMARK_ENABLE_WERROR OFF)
  attn_built_dependency(benchmark benchmark)
endif()

if(ATTN_BUILD_EXAMPLES OR ATTN_BUILD_BENCHMARKS)
  attn_header_dependency(CLI11 CLI11::CLI11 include
    URL https://github.com/CLIUtils/CLI11/archive/refs/tags/v2.5.0.tar.gz
    URL_HASH SHA256=17e02b4cddc2fa348e5dbdbb582c59a3486fa2b2433e70a0c3bacb871334fd55
    FIND_PACKAGE_ARGS 2.1 GLOBAL)
endif()

if(ATTN_TEXT)
  # Most distributions have only a pkg-config file of utf8proc.
  add_library(attn_utf8proc INTERFACE)
  find_package(PkgConfig QUIET)
  if(PkgConfig_FOUND AND NOT FETCHCONTENT_SOURCE_DIR_UTF8PROC)
    pkg_check_modules(utf8proc QUIET IMPORTED_TARGET GLOBAL libutf8proc>=2.4)
  endif()
  if(TARGET PkgConfig::utf8proc)
    target_link_libraries(attn_utf8proc INTERFACE PkgConfig::utf8proc)
  else()
    FetchContent_Declare(utf8proc
      URL https://github.com/JuliaStrings/utf8proc/archive/refs/tags/v2.10.0.tar.gz
      URL_HASH SHA256=6f4f1b639daa6dca9f80bc5db1233e9cbaa31a67790887106160b33ef743f136
      DOWNLOAD_EXTRACT_TIMESTAMP ON)
    set(UTF8PROC_INSTALL OFF)
    set(UTF8PROC_ENABLE_TESTING OFF)
    attn_built_dependency(utf8proc utf8proc)
    target_link_libraries(attn_utf8proc INTERFACE utf8proc)
  endif()
endif()

if(ATTN_BUILD_EXAMPLES)
  # Never downloaded: libpng needs zlib in turn, and only two examples need libpng.
  find_package(PNG QUIET)
  # Line editing for chat; without it chat reads plain lines.
  find_package(PkgConfig QUIET)
  if(PkgConfig_FOUND)
    pkg_check_modules(libedit QUIET IMPORTED_TARGET GLOBAL libedit)
    # Sound files for transcribe.
    pkg_check_modules(sndfile QUIET IMPORTED_TARGET GLOBAL sndfile)
  endif()
endif()

if(ATTN_BUILD_TESTS)
  # Runs the tests that are Python scripts, which are skipped without it.
  find_package(Python3 QUIET COMPONENTS Interpreter)
endif()
