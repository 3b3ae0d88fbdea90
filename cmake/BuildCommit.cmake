# moelab_commit_source(SOURCE TEMPLATE): every build asks git for the commit and writes SOURCE from TEMPLATE when the
# answer has changed. A new commit of what is built therefore compiles one file again, and CMake does not run again.
set(MOELAB_WRITE_COMMIT ${CMAKE_CURRENT_LIST_DIR}/write_commit.cmake)
function(moelab_commit_source source template)
  add_custom_target(moelab_write_commit
    COMMAND ${CMAKE_COMMAND} -DSOURCE=${source} -DTEMPLATE=${template} -P ${MOELAB_WRITE_COMMIT}
    WORKING_DIRECTORY ${CMAKE_SOURCE_DIR} BYPRODUCTS ${source} COMMENT "Asking git for the commit" VERBATIM)
endfunction()
