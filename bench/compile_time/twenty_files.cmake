# Prints how long a program of twenty files with one attention call each takes to build, with the
# headers alone and with attn::compiled: the whole program, then one changed file. All processors
# compile.
cmake_minimum_required(VERSION 3.24)

cmake_host_system_information(RESULT jobs QUERY NUMBER_OF_LOGICAL_CORES)

# Builds in `folder` and sets `result` to the time in seconds.
function(build result folder)
  string(TIMESTAMP begin "%s")
  execute_process(COMMAND "${CMAKE_COMMAND}" --build "${folder}" --parallel ${jobs}
    OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  string(TIMESTAMP end "%s")
  math(EXPR seconds "${end} - ${begin}")
  set(${result} ${seconds} PARENT_SCOPE)
endfunction()

foreach(target attn::attn attn::compiled)
  string(REPLACE "attn::" "" folder "${WORK_DIR}/${target}")
  file(REMOVE_RECURSE "${folder}")
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -S "${CMAKE_CURRENT_LIST_DIR}/twenty_files" -B "${folder}"
      -D "CMAKE_CXX_COMPILER=${CXX}" -D CMAKE_BUILD_TYPE= -D CMAKE_CXX_FLAGS=-O2
      -D "ATTN_SOURCE_DIR=${SOURCE_DIR}" -D ATTN_TARGET=${target}
    OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
  build(whole "${folder}")
  execute_process(COMMAND "${folder}/twenty_files" COMMAND_ERROR_IS_FATAL ANY)
  file(TOUCH "${folder}/call_7.cpp")
  build(again "${folder}")
  message("twenty files with ${target}: ${whole} s; after a change of one file: ${again} s "
    "(${jobs} jobs)")
endforeach()
