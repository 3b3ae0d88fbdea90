# The classes of x86-64 CPUs that moelab is built for: `source scripts/cpu_classes.sh`.
# shellcheck shell=bash disable=SC2034

readonly CPU_CLASSES=(avx2 avx512 avx512_bf16 amx)  # from the least to the best

# Names in tables.
declare -rA TITLE=([avx2]=AVX2 [avx512]=AVX-512 [avx512_bf16]=AVX512-BF16 [amx]=AMX)

# MOELAB_MARCH of a class's build. avx512_bf16: AMD's CPUs, which GCC 12 has no name for; Intel's multiply bf16 in fp32.
declare -rA MARCH=([avx2]=x86-64-v3 [avx512]=x86-64-v4 [avx512_bf16]="x86-64-v4;-mavx512bf16" [amx]=sapphirerapids)

# Flags in /proc/cpuinfo of a CPU that can run that build.
readonly AVX2_FLAGS="avx2 fma f16c bmi1 bmi2 movbe abm"
readonly AVX512_FLAGS="$AVX2_FLAGS avx512f avx512bw avx512cd avx512dq avx512vl"
readonly AVX512_BF16_FLAGS="$AVX512_FLAGS avx512_vnni avx512_bf16"
declare -rA CPU_FLAGS=([avx2]=$AVX2_FLAGS [avx512]=$AVX512_FLAGS [avx512_bf16]=$AVX512_BF16_FLAGS
  [amx]="$AVX512_BF16_FLAGS avx512_fp16 amx_tile amx_int8 amx_bf16")

# Arguments of env that keep LibTorch, oneDNN and MKL from using more than the class has.
declare -rA LOWERED=(
  [avx2]="ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 MKL_ENABLE_INSTRUCTIONS=AVX2"
  [avx512]="ATEN_CPU_CAPABILITY=avx512 ONEDNN_MAX_CPU_ISA=AVX512_CORE MKL_ENABLE_INSTRUCTIONS=AVX512"
  [avx512_bf16]="ATEN_CPU_CAPABILITY=avx512 ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 MKL_ENABLE_INSTRUCTIONS=AVX512_E3"
  [amx]="-u ATEN_CPU_CAPABILITY -u ONEDNN_MAX_CPU_ISA -u MKL_ENABLE_INSTRUCTIONS")

# Variable for tests with AVX2 alone on an Intel CPU: there the bits of MKL's products depend on the number of threads.
# In MKL's strict mode they don't, so that tests over numbers of threads see our own code.
readonly STRICT_MKL=MKL_CBWR=AVX2,STRICT

# missing_flags CLASS: the flags that this machine's CPU lacks for it, on one line; an empty line when it has all.
missing_flags() {
  local present flag missing=()
  present=" $(awk -F: '/^flags/ {print $2; exit}' /proc/cpuinfo) "
  for flag in ${CPU_FLAGS[$1]}; do
    [[ $present == *" $flag "* ]] || missing+=("$flag")
  done
  echo "${missing[*]}"
}

# Whether this machine's tests need STRICT_MKL.
needs_strict_mkl() {
  grep -q GenuineIntel /proc/cpuinfo && [[ -n $(missing_flags avx512) ]]
}
