# Toolchain for Windows by Debian's MinGW; tests run under wine.
set(CMAKE_SYSTEM_NAME Windows)
set(CMAKE_SYSTEM_PROCESSOR x86_64)
set(CMAKE_C_COMPILER x86_64-w64-mingw32-gcc-posix)
set(CMAKE_CXX_COMPILER x86_64-w64-mingw32-g++-posix)
set(CMAKE_EXE_LINKER_FLAGS_INIT -static)
set(OpenMP_gomp_LIBRARY gomp CACHE STRING "The static library: CMake would find that of a DLL")
# GNU's linker takes minutes where LLD (Debian: lld) takes a second, because of the many sections of unoptimised
# templates. Debian's g++ ignores -fuse-ld=lld.
find_program(ATTN_LLD ld.lld)
if(ATTN_LLD)
  file(WRITE ${CMAKE_BINARY_DIR}/lld.specs "*linker:\n${ATTN_LLD}\n\n")
  string(APPEND CMAKE_EXE_LINKER_FLAGS_INIT " -specs=${CMAKE_BINARY_DIR}/lld.specs -fno-use-linker-plugin")
endif()
# In Debian, wine's loader is not in PATH.
find_program(ATTN_WINE NAMES wine64 wine PATHS /usr/lib/wine REQUIRED)
set(CMAKE_CROSSCOMPILING_EMULATOR ${ATTN_WINE})
set(CMAKE_FIND_ROOT_PATH /usr/x86_64-w64-mingw32)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)

# This machine's header-only libraries, in a folder without the headers of its C library.
set(host ${CMAKE_BINARY_DIR}/host)
file(MAKE_DIRECTORY ${host}/include)
foreach(library nlohmann CLI)
  file(CREATE_LINK /usr/include/${library} ${host}/include/${library} SYMBOLIC)
endforeach()
set(FETCHCONTENT_SOURCE_DIR_EIGEN3 /usr/include/eigen3)
set(FETCHCONTENT_SOURCE_DIR_NLOHMANN_JSON ${host})
set(FETCHCONTENT_SOURCE_DIR_CLI11 ${host})
set(FETCHCONTENT_SOURCE_DIR_GOOGLETEST /usr/src/googletest)
# pkg-config knows this machine's libraries alone.
set(CMAKE_DISABLE_FIND_PACKAGE_PkgConfig ON)
