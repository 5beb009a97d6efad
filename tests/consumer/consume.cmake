# Does what a user of attn would do, in the way that MODE names: install, find_package, add_subdirectory or pkg_config;
# LIBRARY is attn (header-only) or compiled.
cmake_minimum_required(VERSION 3.24)

cmake_path(GET PREFIX PARENT_PATH work_dir)

function(run)
  execute_process(COMMAND ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# Configures, builds and runs the project in tests/consumer/<MODE>.
function(build_and_run)
  set(build_dir "${work_dir}/${MODE}_${LIBRARY}")
  file(REMOVE_RECURSE "${build_dir}")
  run(${CMAKE_COMMAND} -S "${CMAKE_CURRENT_LIST_DIR}/${MODE}" -B "${build_dir}" -G "${GENERATOR}"
    -D "CMAKE_CXX_COMPILER=${CXX}" -D CMAKE_BUILD_TYPE=Release
    -D "LIBRARY=${LIBRARY}" ${ARGV})
  run(${CMAKE_COMMAND} --build "${build_dir}")
  run("${build_dir}/consumer")
endfunction()

if(MODE STREQUAL "install")
  # Installed at one place and moved to another: nothing in the package may remember the first.
  file(REMOVE_RECURSE "${PREFIX}" "${PREFIX}.first")
  run(${CMAKE_COMMAND} --install "${ATTN_BINARY_DIR}" --prefix "${PREFIX}.first")
  file(RENAME "${PREFIX}.first" "${PREFIX}")
elseif(MODE STREQUAL "find_package")
  build_and_run(-D "CMAKE_PREFIX_PATH=${PREFIX}")
elseif(MODE STREQUAL "add_subdirectory")
  build_and_run(-D "ATTN_SOURCE_DIR=${ATTN_SOURCE_DIR}")
elseif(MODE STREQUAL "pkg_config")
  # As by hand: g++ -std=c++20 main.cpp $(pkg-config --cflags --libs attn)
  set(package attn)
  if(LIBRARY STREQUAL "compiled")
    set(package attn-compiled)
  endif()
  set(ENV{PKG_CONFIG_PATH} "${PREFIX}/${LIBDIR}/pkgconfig")
  execute_process(COMMAND "${PKG_CONFIG}" --cflags --libs ${package}
    OUTPUT_VARIABLE flags OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  message("pkg-config --cflags --libs ${package}: ${flags}")
  separate_arguments(flags UNIX_COMMAND "${flags}")
  set(program "${work_dir}/pkg_config_${LIBRARY}_consumer")
  run("${CXX}" -std=c++20 -O2 "${CMAKE_CURRENT_LIST_DIR}/main.cpp" ${flags} -o "${program}")
  run("${program}")
else()
  message(FATAL_ERROR "unknown MODE '${MODE}'")
endif()
