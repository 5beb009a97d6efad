# Uses attn like a user, in the way that MODE names, with LIBRARY: attn or compiled.
cmake_minimum_required(VERSION 3.24)

set(here "${CMAKE_CURRENT_LIST_DIR}")
set(prefix "${WORK_DIR}/prefix_${LIBRARY}")
set(build_dir "${WORK_DIR}/${MODE}_${LIBRARY}")

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# Configures `source_dir` in an empty `binary_dir`. At -O0: only tests whether it builds, and compiling kernels takes
# longest.
function(configure source_dir binary_dir)
  file(REMOVE_RECURSE "${binary_dir}")
  run(${CMAKE_COMMAND} -S "${source_dir}" -B "${binary_dir}" -G "${GENERATOR}" --log-level=WARNING
    -D "CMAKE_CXX_COMPILER=${CXX}" -D CMAKE_BUILD_TYPE=Release
    -D "CMAKE_CXX_FLAGS_RELEASE=-O0 -DNDEBUG" ${ARGN})
endfunction()

# Configures, builds and runs a project of this directory.
function(build_and_run project)
  configure("${here}/${project}" "${build_dir}" -D "LIBRARY=${LIBRARY}" ${ARGN})
  run(${CMAKE_COMMAND} --build "${build_dir}")
  run("${build_dir}/consumer")
endfunction()

# Installs attn without a build, as in the README. For attn::compiled, takes the library that the tests have built.
function(install_attn binary_dir to)
  set(options -D ATTN_BUILD_TESTS=OFF -D ATTN_BUILD_BENCHMARKS=OFF -D ATTN_BUILD_EXAMPLES=OFF)
  if(LIBRARY STREQUAL "compiled")
    list(APPEND options -D ATTN_INSTALL_COMPILED=ON)
  endif()
  configure("${ATTN_SOURCE_DIR}" "${binary_dir}" ${options} ${ARGN})
  if(LIBRARY STREQUAL "compiled")
    file(COPY "${ARCHIVE}" DESTINATION "${binary_dir}")
  endif()
  run(${CMAKE_COMMAND} --install "${binary_dir}" --prefix "${to}")
endfunction()

# Compiles and runs main.cpp by the command g++ -std=c++20 -O2 main.cpp $(pkg-config --cflags --libs attn)
function(build_by_pkg_config)
  set(package attn)
  if(LIBRARY STREQUAL "compiled")
    set(package attn-compiled)
  endif()
  list(JOIN ARGN ":" path)
  set(ENV{PKG_CONFIG_PATH} "${path}")
  execute_process(COMMAND "${PKG_CONFIG}" --cflags --libs ${package}
    OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  message("pkg-config --cflags --libs ${package}: ${flags}")
  separate_arguments(flags UNIX_COMMAND "${flags}")
  set(program "${WORK_DIR}/${MODE}_${LIBRARY}_by_pkg_config")
  run("${CXX}" -std=c++20 -O2 "${here}/main.cpp" ${flags} -o "${program}")
  run("${program}")
endfunction()

# Installs an Eigen that reports `version`.
function(install_eigen version to)
  configure("${here}/eigen_version" "${to}_build"
    -D VERSION=${version} -D "EIGEN_INCLUDE_DIR=${EIGEN_INCLUDE_DIR}" -D "CMAKE_INSTALL_PREFIX=${to}")
  run(${CMAKE_COMMAND} --install "${to}_build")
endfunction()

if(MODE STREQUAL "install")
  # Installed in one place and moved to another: the package must not contain the first place.
  file(REMOVE_RECURSE "${prefix}" "${prefix}.first")
  install_attn("${build_dir}" "${prefix}.first")
  file(RENAME "${prefix}.first" "${prefix}")
  if(NOT EXISTS "${prefix}/share/licenses/attn/LICENSE")
    message(FATAL_ERROR "the licence is not installed")
  endif()
  file(GLOB_RECURSE libraries "${prefix}/*.a" "${prefix}/*compiled.pc")
  if(LIBRARY STREQUAL "attn" AND libraries)
    message(FATAL_ERROR "attn::compiled is installed without ATTN_INSTALL_COMPILED: ${libraries}")
  endif()
elseif(MODE STREQUAL "mpi")
  install_attn("${build_dir}_package" "${prefix}_mpi" -D ATTN_MPI=ON)
  build_and_run(mpi -D "CMAKE_PREFIX_PATH=${prefix}_mpi")
elseif(MODE STREQUAL "find_package")
  build_and_run(find_package -D "CMAKE_PREFIX_PATH=${prefix}")
elseif(MODE STREQUAL "pkg_config")
  build_by_pkg_config("${prefix}/${LIBDIR}/pkgconfig")

elseif(MODE STREQUAL "deb")
  # A Debian package, unpacked in another folder.
  configure("${ATTN_SOURCE_DIR}" "${build_dir}_attn"
    -D ATTN_BUILD_TESTS=OFF -D ATTN_BUILD_BENCHMARKS=OFF -D ATTN_BUILD_EXAMPLES=OFF)
  file(REMOVE_RECURSE "${build_dir}_deb")
  run(${CMAKE_CPACK_COMMAND} --config "${build_dir}_attn/CPackConfig.cmake" -G DEB -B "${build_dir}_deb")
  file(GLOB package "${build_dir}_deb/libattn-dev_*_all.deb")
  execute_process(COMMAND "${DPKG_DEB}" --field "${package}" Depends OUTPUT_VARIABLE depends COMMAND_ERROR_IS_FATAL ANY)
  if(NOT depends MATCHES "libeigen3-dev.*nlohmann-json3-dev.*libutf8proc-dev")
    message(FATAL_ERROR "the package depends on: ${depends}")
  endif()
  run("${DPKG_DEB}" --extract "${package}" "${build_dir}_deb/root")
  build_and_run(find_package -D "CMAKE_PREFIX_PATH=${build_dir}_deb/root/usr")

elseif(MODE STREQUAL "add_subdirectory")
  set(fetch OFF)
  if(LIBRARY STREQUAL "compiled")  # only the linked library is built
    set(fetch ON)
  endif()
  build_and_run(add_subdirectory -D "ATTN_SOURCE_DIR=${ATTN_SOURCE_DIR}" -D "CMAKE_INSTALL_PREFIX=${build_dir}/prefix"
    -D FETCH=${fetch})
  file(GLOB_RECURSE libraries "${build_dir}/*.a")
  if(LIBRARY STREQUAL "attn" AND libraries)
    message(FATAL_ERROR "a library is built although no target links to it: ${libraries}")
  endif()

elseif(MODE STREQUAL "absolute_dirs")
  # Headers and libraries in separate directories, as in Nix and Guix; outside of the sources, since CMake refuses to
  # export directories in them.
  execute_process(COMMAND mktemp -d OUTPUT_VARIABLE dirs OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  install_attn("${build_dir}_attn" "${dirs}/prefix"
    -D "CMAKE_INSTALL_PREFIX=${dirs}/prefix"
    -D "CMAKE_INSTALL_INCLUDEDIR=${dirs}/headers/include" -D "CMAKE_INSTALL_LIBDIR=${dirs}/libraries/lib")
  if(PKG_CONFIG)
    build_by_pkg_config("${dirs}/libraries/lib/pkgconfig")
  endif()
  build_and_run(find_package -D "CMAKE_PREFIX_PATH=${dirs}/libraries")
  file(REMOVE_RECURSE "${dirs}")

elseif(MODE STREQUAL "eigen_5")
  set(eigen "${WORK_DIR}/eigen_5")
  install_eigen(5.0.1 "${eigen}")
  set(use_it -D "Eigen3_DIR=${eigen}/share/eigen3/cmake")
  install_attn("${build_dir}_attn" "${build_dir}_prefix" ${use_it})
  build_and_run(find_package -D "CMAKE_PREFIX_PATH=${build_dir}_prefix" ${use_it})
  if(PKG_CONFIG)
    build_by_pkg_config("${eigen}/share/pkgconfig" "${build_dir}_prefix/${LIBDIR}/pkgconfig")
  endif()
  foreach(fetch OFF ON)
    build_and_run(add_subdirectory -D "ATTN_SOURCE_DIR=${ATTN_SOURCE_DIR}" -D FETCH=${fetch} ${use_it})
  endforeach()

elseif(MODE STREQUAL "eigen_3_3")
  # An Eigen that is too old is refused; the message names both versions.
  set(eigen "${WORK_DIR}/eigen_3_3")
  install_eigen(3.3.9 "${eigen}")
  file(REMOVE_RECURSE "${build_dir}")
  execute_process(
    COMMAND ${CMAKE_COMMAND} -S "${here}/add_subdirectory" -B "${build_dir}" -G "${GENERATOR}"
      -D "CMAKE_CXX_COMPILER=${CXX}" -D "ATTN_SOURCE_DIR=${ATTN_SOURCE_DIR}" -D LIBRARY=attn
      -D "Eigen3_DIR=${eigen}/share/eigen3/cmake"
    RESULT_VARIABLE result OUTPUT_QUIET ERROR_VARIABLE text)
  if(result EQUAL 0 OR NOT text MATCHES "needs Eigen 3.4" OR NOT text MATCHES "3.3.9")
    message(FATAL_ERROR "Eigen 3.3.9 is not refused: ${text}")
  endif()

elseif(MODE STREQUAL "shared_library")
  build_and_run(shared_library -D "CMAKE_PREFIX_PATH=${prefix}")
  file(GLOB plugin "${build_dir}/libplugin.*")
  execute_process(COMMAND ${NM} -C -D --defined-only ${plugin}
    OUTPUT_VARIABLE exported COMMAND_ERROR_IS_FATAL ANY)
  message("the plugin exports:\n${exported}")
  if(exported MATCHES "attn(::|_)")
    message(FATAL_ERROR "the plugin exports symbols of attn")
  endif()

elseif(MODE STREQUAL "implementation")
  # Kernels in a file of the program, without a library. Slow parts are compiled without optimisation.
  file(REMOVE_RECURSE "${build_dir}")
  file(WRITE "${build_dir}/implementation.cpp" "#define ATTN_IMPLEMENTATION_FLOAT\n#include <attn/attn.hpp>\n")
  set(flags -std=c++20 -O0 -DATTN_COMPILED "-I${ATTN_SOURCE_DIR}/include" "-I${EIGEN_INCLUDE_DIR}")
  execute_process(
    COMMAND "${CXX}" ${flags} "${here}/main.cpp" "${build_dir}/implementation.cpp" -o "${build_dir}/program"
    COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND "${build_dir}/program" COMMAND_ERROR_IS_FATAL ANY)
  # A file with all kernels passes at least the compiler's front end.
  file(WRITE "${build_dir}/all.cpp" "#define ATTN_IMPLEMENTATION\n#include <attn/attn.hpp>\n")
  execute_process(COMMAND "${CXX}" ${flags} -fsyntax-only "${build_dir}/all.cpp" COMMAND_ERROR_IS_FATAL ANY)

elseif(MODE STREQUAL "other_layout")
  # If the headers have another layout than the library, the linker must report it, before the program crashes.
  file(REMOVE_RECURSE "${build_dir}")
  file(COPY "${prefix}/include" DESTINATION "${build_dir}")
  set(config "${build_dir}/include/attn/core/config.hpp")
  file(READ "${config}" text)
  string(REGEX REPLACE "(define ATTN_VERSION_PATCH) [0-9]+" "\\1 99" text "${text}")
  file(WRITE "${config}" "${text}")
  function(build_with result_variable text_variable)
    execute_process(
      COMMAND "${CXX}" -std=c++20 -O1 -DATTN_COMPILED ${ARGN} "-I${EIGEN_INCLUDE_DIR}" "${here}/main.cpp"
        "-L${prefix}/${LIBDIR}" -lattn_compiled -o "${build_dir}/program"
      RESULT_VARIABLE result ERROR_VARIABLE text)
    set(${result_variable} ${result} PARENT_SCOPE)
    set(${text_variable} "${text}" PARENT_SCOPE)
  endfunction()
  build_with(result text "-I${prefix}/include")
  if(NOT result EQUAL 0)
    message(FATAL_ERROR "headers of the library's own layout do not link: ${text}")
  endif()
  foreach(flags "-I${prefix}/include;-D_GLIBCXX_DEBUG" "-I${build_dir}/include")
    build_with(result text ${flags})
    if(result EQUAL 0 OR NOT text MATCHES "undefined reference to [^\n]*attn::compiled::")
      message(FATAL_ERROR "${flags} links with a library of another layout: ${text}")
    endif()
  endforeach()
else()
  message(FATAL_ERROR "unknown MODE '${MODE}'")
endif()
