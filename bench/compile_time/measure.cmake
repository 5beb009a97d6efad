# Prints the compile time of one attention call through each header and with attn::compiled, as a
# ratio to <Eigen/Core> alone in the same run, beside its limit. Exceeding a limit is no error.
cmake_minimum_required(VERSION 3.24)

set(common -O2 -std=c++20 -fopenmp)
foreach(dir IN LISTS INCLUDE_DIRS)
  list(APPEND common "-I${dir}")
endforeach()

# The files to compile, in turns: a name for the reader, the macros that select the file, and its
# limit in hundredths of <Eigen/Core>.
set(names eigen all attention compiled)
set(eigen_what "<Eigen/Core> alone")
set(eigen_options -DEIGEN_ALONE)
set(all_what "one causal call through <attn/attn.hpp>")
set(all_limit 500)
set(attention_what "the same through <attn/attention.hpp>")
set(attention_options -DATTENTION_ALONE)
set(attention_limit 400)
set(compiled_what "the same through <attn/attention.hpp> with attn::compiled")
set(compiled_options -DATTENTION_ALONE -DATTN_COMPILED)
set(compiled_limit 190)
if(HAS_SINGLE_HEADER)
  list(APPEND names single)
  set(single_what "the same through attn_single.hpp")
  set(single_options -DSINGLE_HEADER)
  set(single_limit 550)  # 1.1 times that of <attn/attn.hpp>
endif()

# The shortest of five times, in hundredths of a second.
foreach(run RANGE 1 5)
  foreach(name IN LISTS names)
    string(TIMESTAMP begin "%s%f")
    execute_process(
      COMMAND "${CXX}" ${common} ${${name}_options} -c "${SOURCE}" -o "${OUTPUT}"
      COMMAND_ERROR_IS_FATAL ANY)
    string(TIMESTAMP end "%s%f")
    math(EXPR hundredths "(${end} - ${begin}) / 10000")
    if(NOT ${name}_time OR hundredths LESS ${name}_time)
      set(${name}_time ${hundredths})
    endif()
  endforeach()
endforeach()

# Sets `result` to a number of hundredths as text, such as 4.80.
function(decimal result hundredths)
  math(EXPR whole "${hundredths} / 100")
  math(EXPR rest "${hundredths} % 100 + 100")
  string(SUBSTRING ${rest} 1 2 rest)
  set(${result} "${whole}.${rest}" PARENT_SCOPE)
endfunction()

foreach(name IN LISTS names)
  decimal(seconds ${${name}_time})
  if(NOT DEFINED ${name}_limit)
    message("${${name}_what} compiles in ${seconds} s")
    continue()
  endif()
  math(EXPR ratio "${${name}_time} * 100 / ${eigen_time}")
  decimal(ratio_text ${ratio})
  decimal(limit_text ${${name}_limit})
  set(verdict "within")
  if(ratio GREATER ${name}_limit)
    set(verdict "ABOVE")
  endif()
  message("${${name}_what} compiles in ${seconds} s, ${ratio_text} times <Eigen/Core>: "
    "${verdict} the limit of ${limit_text}")
endforeach()
