# cmake -DSOURCE=… -DTEMPLATE=… -P write_commit.cmake, in a checkout: replaces @COMMIT@ in TEMPLATE by the commit that last
# changed what is built ("unknown" outside of a checkout; in a shallow one perhaps a later one) and @MODIFIED@ by whether
# tracked files of that differ from it (true or false). So measurements of one program stay of one commit while texts,
# tests, scripts and results go on. SOURCE is written only when it changes.
set(COMMIT unknown)
set(MODIFIED false)
set(built CMakeLists.txt CMakePresets.json cmake kernels moe train bench tests/kernels/cases)  # bench_kernels has these cases
execute_process(COMMAND git rev-list -1 --abbrev-commit --abbrev=12 HEAD -- ${built}
  RESULT_VARIABLE failed OUTPUT_VARIABLE last OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT failed AND last)
  set(COMMIT ${last})
  execute_process(COMMAND git --no-optional-locks status --porcelain --untracked-files=no -- ${built}
    RESULT_VARIABLE failed OUTPUT_VARIABLE changes ERROR_QUIET)
  if(failed OR changes)
    set(MODIFIED true)
  endif()
endif()
configure_file(${TEMPLATE} ${SOURCE} @ONLY)
