# Fails unless the compiled kernels ask for memory ahead, into the first cache and into the second. g++ 12 dropped whole
# functions that did nothing else (core/prefetch.hpp): results stay the same, so that no other test sees it.
cmake_minimum_required(VERSION 3.24)

execute_process(COMMAND "${OBJDUMP}" --disassemble "${LIBRARY}" OUTPUT_VARIABLE text COMMAND_ERROR_IS_FATAL ANY)
foreach(instruction prefetcht0 prefetcht1)
  string(REGEX MATCHALL "${instruction}" found "${text}")
  list(LENGTH found count)
  message("${instruction}: ${count} times")
  if(count EQUAL 0)
    message(FATAL_ERROR "${LIBRARY} has no ${instruction}")
  endif()
endforeach()
