# cmake -DSOURCE=… -DTEMPLATE=… -P write_commit.cmake, in a checkout: replaces @COMMIT@ in TEMPLATE by its commit
# ("unknown" outside of a checkout) and @MODIFIED@ by whether tracked files differ from it (true or false). Files below
# results/ don't count: measurements are written there. SOURCE is written only when it changes.
set(COMMIT unknown)
set(MODIFIED false)
execute_process(COMMAND git rev-parse --short=12 HEAD
  RESULT_VARIABLE failed OUTPUT_VARIABLE head OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
if(NOT failed)
  set(COMMIT ${head})
  execute_process(
    COMMAND git --no-optional-locks status --porcelain --untracked-files=no -- ":/" ":(top,exclude)results"
    RESULT_VARIABLE failed OUTPUT_VARIABLE changes ERROR_QUIET)
  if(failed OR changes)
    set(MODIFIED true)
  endif()
endif()
configure_file(${TEMPLATE} ${SOURCE} @ONLY)
