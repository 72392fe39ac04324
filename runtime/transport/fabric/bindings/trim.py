"""Cuts what bindgen made down to what the wrapper uses: see generate.sh."""
import re, sys

# Operations that are called, per table. Of all others only the place in the table is kept.
USED = {
    "fi_ops": {"close", "bind", "control"},
    "fi_ops_fabric": {"domain", "trywait"},
    "fi_ops_domain": {"av_open", "cq_open", "endpoint"},
    "fi_ops_mr": {"reg"},
    "fi_ops_cq": {"read", "readerr", "strerror"},
    "fi_ops_av": {"insert", "remove"},
    "fi_ops_ep": {"cancel"},
    "fi_ops_msg": {"recv", "send", "sendmsg", "inject"},
    "fi_ops_cm": {"getname"},
    "fi_ops_rma": {"readmsg", "writemsg"},
}
# What is only pointed to, and never looked into.
HIDDEN = """fid_nic fi_wait_attr fid_wait fi_poll_attr fid_poll fi_eq_attr fid_eq fi_cntr_attr fid_cntr
fi_av_set_attr fid_av_set fi_mr_attr fi_atomic_attr fi_collective_attr fi_ops_tagged fi_ops_atomic
fi_ops_collective fid_pep fid_stx fid_mc fi_mr_attr__bindgen_ty_1""".split()

text = sys.stdin.read()
text = re.sub(r"(?:#\[[^\n]*\n)*pub (?:struct|union) (?:%s) \{.*?\n\}\n" % "|".join(HIDDEN),
              "", text, flags=re.S)


def table(match):
    name, body = match[1], match[2]
    fields = re.findall(r"    pub (\w+): (.*?),\n(?=    pub |\Z)", body, flags=re.S)
    lines = []
    for field, kind in fields:
        if kind.startswith("::std::option::Option") and field not in USED[name]:
            kind = "Unused"
        lines.append(f"    pub {field}: {kind},\n")
    return f"pub struct {name} {{\n{''.join(lines)}}}\n"


text = re.sub(r"pub struct (fi_ops\w*) \{\n(.*?)\n\}\n", lambda m: table((m[0], m[1], m[2] + "\n")),
              text, flags=re.S)
for hidden in HIDDEN:
    text = re.sub(r"\b%s\b" % hidden, "c_void", text)
text = re.sub(r"::std::os::raw::", "", text).replace("::std::option::", "")
text = re.sub(r"pub const (FI_\w+): (?:u32|u64|_bindgen_ty_\d+) =", r"pub const \1: u64 =", text)
text = re.sub(r"pub const (FI_E(?:AGAIN|NOSYS|AVAIL)): u64", r"pub const \1: c_int", text)
text = re.sub(r"pub type (?:fi_hmem_iface|fi_datatype|fi_op|fi_collective_op) = .*\n", "", text)
text = re.sub(r"pub type _bindgen_ty_\d+ = \w+;\n", "", text)
# Constants of enumerations that are not used.
KEEP = set(open(sys.argv[1]).read().split())
lines = []
for line in text.splitlines(keepends=True):
    constant = re.match(r"pub const (\w+):", line)
    if constant and constant[1] not in KEEP:
        continue
    lines.append(line)
sys.stdout.write("".join(lines))
