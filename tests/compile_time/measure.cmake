# Prints what one attention call costs to compile, header-only and with attn::compiled, beside <Eigen/Core> alone; a slow
# machine fails nothing.
cmake_minimum_required(VERSION 3.24)

set(common -O2 -std=c++20)
foreach(dir IN LISTS INCLUDE_DIRS)
  list(APPEND common "-I${dir}")
endforeach()

# Sets `result` to the least time of two, in hundredths of a second.
function(measure result)
  set(least "")
  foreach(run RANGE 1 2)
    string(TIMESTAMP begin "%s%f")
    execute_process(COMMAND "${CXX}" ${common} ${ARGN} -c "${SOURCE}" -o "${OUTPUT}" COMMAND_ERROR_IS_FATAL ANY)
    string(TIMESTAMP end "%s%f")
    math(EXPR hundredths "(${end} - ${begin}) / 10000")
    if(least STREQUAL "" OR hundredths LESS least)
      set(least ${hundredths})
    endif()
  endforeach()
  set(${result} ${least} PARENT_SCOPE)
endfunction()

# Sets `result` to hundredths of a second as seconds.
function(as_seconds result hundredths)
  math(EXPR whole "${hundredths} / 100")
  math(EXPR rest "${hundredths} % 100 + 100")
  string(SUBSTRING ${rest} 1 2 rest)
  set(${result} "${whole}.${rest} s" PARENT_SCOPE)
endfunction()

# Prints a time with its limit, both in hundredths, and its ratio to Eigen's.
function(print_time what hundredths limit)
  as_seconds(time ${hundredths})
  as_seconds(most ${limit})
  math(EXPR ratio "${hundredths} * 10 / ${eigen_alone}")
  math(EXPR tenth "${ratio} % 10")
  math(EXPR whole "${ratio} / 10")
  set(verdict "within")
  if(hundredths GREATER limit)
    set(verdict "ABOVE")
  endif()
  message("${what} compiles in ${time}, ${verdict} the limit of ${most}; ${whole}.${tenth} times <Eigen/Core> alone")
endfunction()

measure(eigen_alone -DEIGEN_ALONE)
measure(header_only)
measure(compiled -DATTN_COMPILED)
as_seconds(time ${eigen_alone})
message("<Eigen/Core> alone compiles in ${time}")
print_time("one attention call, header-only," ${header_only} 400)
print_time("one attention call, attn::compiled," ${compiled} 250)
