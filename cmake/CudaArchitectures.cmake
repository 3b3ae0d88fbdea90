# moelab_cuda_architectures(VARIABLE WANTED): sets VARIABLE to WANTED or, for "native", to the architectures of the GPUs that
# nvidia-smi lists; where it lists none, to all that moelab is made for. Each has machine code and PTX.
set(MOELAB_ALL_ARCHITECTURES 80 86 89 90a 100 120)

function(moelab_cuda_architectures variable wanted)
  set(found ${wanted})
  if(wanted STREQUAL "native")
    execute_process(COMMAND nvidia-smi --query-gpu=compute_cap --format=csv,noheader
      OUTPUT_VARIABLE listed RESULT_VARIABLE failed ERROR_QUIET)
    string(REGEX MATCHALL "[0-9]+\\.[0-9]" found "${listed}")
    string(REPLACE "." "" found "${found}")
    list(REMOVE_DUPLICATES found)
    list(TRANSFORM found REPLACE "^90$" "90a")
    if(failed OR NOT found)
      set(found ${MOELAB_ALL_ARCHITECTURES})
    endif()
  endif()
  set(${variable} ${found} PARENT_SCOPE)
endfunction()
