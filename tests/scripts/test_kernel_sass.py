"""scripts/kernel_sass.py: what nvdisasm says, read and judged."""
import pathlib
import sys

ROOT = pathlib.Path(__file__).parents[2]
sys.path.append(str(ROOT / "scripts"))
import kernel_sass  # noqa: E402

SAID = """
	.section	.text._Z4goodv,"ax",@progbits
.text._Z4goodv:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   CALL.REL.NOINC `($__internal_0_$__cuda_sm20_div_s64) ;
.L_x_1:
        /*0020*/                   LDG.E.128.CONSTANT R4, desc[UR4][R2.64] ;
        /*0028*/                   LDSM.16.M88.4 R8, [R5] ;
        /*002c*/                   HMMA.16816.F32.BF16 R4, R8, R12, R4 ;
        /*0030*/              @!P0 LDG.E.U16 R8, desc[UR4][R6.64] ;
        /*0040*/                   LDG.E R9, desc[UR4][R6.64] ;
        /*0048*/               @P0 CALL.REL.NOINC `(.L_x_2) ;
        /*0050*/               @P1 BRA `(.L_x_1) ;
        /*0060*/                   EXIT ;
.L_x_2:
        /*0070*/                   BRA `(.L_x_2);
$__internal_0_$__cuda_sm20_div_s64:
.L_x_3:
        /*0080*/                   CALL.REL.NOINC `($somewhere) ;
        /*0090*/               @P1 BRA `(.L_x_3) ;
	.section	.text._Z3badv,"ax",@progbits
.text._Z3badv:
.L_x_4:
        /*0000*/                   LDG.E.64 R4, desc[UR4][R2.64] ;
        /*0010*/                   CALL.REL.NOINC `($__internal_0_$__cuda_sm20_div_s64) ;
        /*0020*/                   STL.64 [R1], R4 ;
        /*0030*/              @!P0 BRA `(.L_x_4) ;
        /*0040*/                   EXIT ;
"""


def test_what_nvdisasm_says_is_read():
    good, bad = kernel_sass.kernels_in(SAID, "90a")
    assert good == ("_Z4goodv", "90a", {128: 1, 16: 1, 32: 1}, 0, 0, {"HMMA": 1, "LDSM": 1}, "")
    assert bad == ("_Z3badv", "90a", {64: 1}, 1, 1, {}, "")


def test_what_is_wrong_is_said():
    good, bad = kernel_sass.kernels_in(SAID, "90a")
    assert kernel_sass.wrong_with(good, "gather_kernel<int4>") == []
    assert kernel_sass.wrong_with(bad, "swiglu_kernel<__half, 8>") == ["no 128-bit load", "1 calls in loops", "local memory"]
    assert kernel_sass.wrong_with(bad._replace(calls_in_loops=0, local=0), "swiglu_kernel<__half, 1>") == []
    assert kernel_sass.wrong_with(bad._replace(loads={128: 1}, local=0), "gather_kernel<int4>") == []
    assert kernel_sass.wrong_with(good, "rows_kernel<__half, Lines<__half> >") == ["no LDGSTS", "1 products for 1 loads of fragments"]
    assert kernel_sass.wrong_with(good._replace(tensor_core={"HMMA": 5, "LDSM": 2, "LDGSTS": 1}), "columns_kernel<__half>") == []
    hopper = good._replace(file="products_sm90a.cu", tensor_core={"HGMMA": 8, "WARPGROUP": 5, "LDGSTS": 1})
    assert kernel_sass.wrong_with(hopper, "columns_kernel<__half>") == []
    serial = hopper._replace(tensor_core={"HGMMA": 8, "WARPGROUP": 16})
    assert kernel_sass.wrong_with(serial, "columns_kernel<__half>") == ["no LDGSTS", "8 products for 16 fences and waits"]
    page = kernel_sass.page([good._replace(file="a.cu")], "made so")
    assert "| a.cu | `good` | 1 × 128, 1 × 32, 1 × 16; 1 HMMA, 1 LDSM |" in page and "; 0 do not keep to that." in page
