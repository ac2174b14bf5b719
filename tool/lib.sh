# What the shell tools share. Sourced, not run.

# say WORDS: a line of progress, on standard error, so that output stays clean.
say() { printf '%s\n' "${0##*/}: $*" >&2; }

# die WORDS: one clear line that says what went wrong and what to do; status 1.
die() { say "error: $*"; exit 1; }

# have COMMAND: is there such a command?
have() { command -v "$1" >/dev/null 2>&1; }

# pin KEY: the value of KEY in upstream.pin.
pin() {
    sed -n "s/^$1=//p" "$top/upstream.pin"
}

# sha256_of FILE
sha256_of() {
    if have sha256sum; then sha256sum <"$1"; else shasum -a 256 <"$1"; fi | cut -d' ' -f1
}

# need_room DIR KB: dies unless DIR's file system has KB to spare.
need_room() {
    room=$(df -Pk "$1" | awk 'NR == 2 { print $4 }')
    [ "${room:-0}" -ge "$2" ] ||
        die "not enough space in $1: $((${room:-0} / 1024)) MB free, $(($2 / 1024)) MB needed; make room there, or build in a copy of this repository on a larger disk"
}

# revision: CowRuby's own, from gc/revision.h.
revision() {
    sed -n 's/^#define COWRUBY_REVISION "\(.*\)"/\1/p' "$top/gc/revision.h"
}
