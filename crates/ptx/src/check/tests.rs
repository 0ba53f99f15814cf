//! What the last look finds: each damage to a good module is named. Without it a broken module would reach a driver.

use super::check;

const GOOD: &str = ".version 7.0
.target sm_80
.address_size 64

.visible .entry k(
\t.param .u64 .ptr .global .align 16 buffer$0,
\t.param .align 8 .b8 lengths$[8],
\t.param .align 8 .b8 scalars$[4]
)
.reqntid 64, 1, 1
{
\t.reg .pred %p<2>;
\t.reg .b16 %h<2>;
\t.reg .b32 %r<10>;
\t.reg .b64 %l<4>;
\t.shared .align 32 .b8 shared$[256];
\tld.param.u64 %l0, [buffer$0];
\tcvta.to.global.u64 %l1, %l0;
\tmov.u32 %r0, %tid.x;
\tmov.u32 %r1, shared$;
\tld.param.b32 %r2, [scalars$+0];
\tmad.wide.u32 %l2, %r0, 16, %l1;
\tld.global.v2.b32 {%r3, %r4}, [%l2+8];
\tmul.rn.f32 %r5, %r3, 0f3F800000;
\tmov.b32 {%h0, %h1}, %r5;
\tsetp.lt.u32 %p0, %r4, 7;
\t@%p0 bra $L0;
\tmov.b32 %r6, %r4;
\tbra $L1;
$L0:
\tmov.b32 %r6, 5;
$L1:
\tredux.sync.add.u32 %r7, %r6, 4294967295;
\tst.global.b32 [%l2], %r7;
\tst.global.b16 [%l2+8], %h1;
\tbar.sync 0;
\tret;
}
";

/// The module with one line changed is refused, and for this reason.
fn refused(from: &str, to: &str, why: &str) {
    assert!(GOOD.contains(from), "{from} is not there");
    match check(&GOOD.replacen(from, to, 1)) {
        Err(problem) => assert!(problem.contains(why), "{from} -> {to}: {problem}"),
        Ok(()) => panic!("{from} -> {to} was accepted"),
    }
}

#[test]
fn a_good_module_passes() {
    assert_eq!(check(GOOD), Ok(()));
}

#[test]
fn registers_are_declared_once_written_before_they_are_read_and_of_the_right_size() {
    refused("\t.reg .b16 %h<2>;", "\t.reg .b16 %h<2>;\n\t.reg .b16 %h<2>;", "declared before");
    refused("%r<10>", "%r<7>", "%r7 is not declared");
    refused("{%r3, %r4}, [%l2+8]", "{%r3, %r8}, [%l2+8]", "%r4 is read and not written before");
    refused("mul.rn.f32 %r5, %r3", "mul.rn.f32 %r5, %h0", "%h0 is no register of .b32");
    refused("mul.rn.f32 %r5", "mul.rn.f32 %r3", "%r3 is written twice");
    refused("mov.b32 %r6, 5", "mov.b32 %r5, 5", "%r5 is written twice");
    refused("add.u32 %r7, %r6", "add.u32 %r6, %r6", "%r6 is written twice");
    refused("@%p0 bra", "@%p1 bra", "%p1 is read and not written before");
    refused("[%l2+8], %h1", "[%l2+8], %r7", "%r7 is no register of .b16");
    refused("%r0, 16, %l1", "%r0, 16, %r1", "%r1 is no register of .b64");
}

#[test]
fn labels_are_defined_once_and_reached_and_nothing_follows_a_branch() {
    refused("@%p0 bra $L0", "@%p0 bra $L2", "nothing leads to the label $L0");
    refused("\tbra $L1;", "\tbra $L7;", "there is no label $L7");
    refused("$L1:\n", "$L0:\n", "this label was defined before");
    refused("\tbra $L1;\n", "\tbra $L1;\n\tbar.sync 0;\n", "nothing leads here");
    refused("\tret;\n", "", "control runs past the end");
    refused("\t@%p0 bra $L0", "\t@%p0 bar.sync 0;\n\tbra $L0", "only branches are guarded");
}

#[test]
fn instructions_are_those_of_the_table_and_of_the_target() {
    refused("mul.rn.f32", "mul.f32", "there is no such instruction");
    refused("mul.rn.f32", "mul.rn.ftz.f32", "there is no such instruction");
    refused("setp.lt.u32 %p0, %r4, 7", "setp.lt.u32 %p0, %r4", "it takes 3 operands");
    refused("setp.lt.u32 %p0, %r4, 7", "setp.lt.u32 %p0, %r4, 0f00000007", "neither a register nor such a number");
    refused("0f3F800000", "1065353216", "neither a register nor such a number");
    refused("%tid.x", "%tid.w", "there is nothing of this name");
    refused("mov.u32 %r1, shared$", "mov.u32 %r1, other$", "there is nothing of this name");
    let old = GOOD.replace("sm_80", "sm_75");
    assert!(check(&old).is_err_and(|e| e.contains("redux.sync") && e.contains("on this target")));
}

#[test]
fn memory_is_declared_aligned_and_within_its_limits() {
    refused("shared$[256]", "shared$[49153]", "more than 48 KiB");
    refused("[%l2+8];", "[%l2+4];", "not aligned to 8 bytes");
    refused("[scalars$+0]", "[scalars$+4]", "after the end of the parameter");
    refused("[scalars$+0]", "[others$+0]", "there is no such parameter");
    refused("scalars$[4]", "scalars$[4096]", "too many bytes of parameters");
    refused("ld.global.v2.b32 {%r3, %r4}, [%l2+8]", "ld.global.v4.b32 {%r3, %r4}, [%l2]", "it takes a list of 4");
    refused(".reqntid 64, 1, 1", ".reqntid 64, 64, 1", "1 to 1024 invocations");
}

#[test]
fn heads_and_ends_are_complete() {
    refused(".version 7.0", ".version 9.9", "no version");
    refused(".target sm_80", ".target sm_90a", "another version");
    refused(".target sm_80", ".target sm_50", "no such target");
    refused(".visible .entry k(", ".visible .entry 2k(", "no name");
    refused("}\n", "", "does not end");
    assert!(
        check(&format!("{GOOD}{}", &GOOD[GOOD.find("\n.visible").unwrap()..]))
            .is_err_and(|e| e.contains("another entry"))
    );
    assert!(check("").is_err() && check(".version 7.0\n.target sm_80\n.address_size 64\n").is_err());
}

#[test]
fn no_text_makes_it_panic() {
    // Every line of a good module cut off anywhere, and every character replaced.
    for at in 0..GOOD.len() {
        let _ = check(&GOOD[..at]);
        for with in ["{", "}", "%", "[", ",", "9", "\n", "é"] {
            let _ = check(&format!("{}{with}{}", &GOOD[..at], &GOOD[at + 1..]));
        }
    }
}
