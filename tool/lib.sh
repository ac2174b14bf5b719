# SPDX-License-Identifier: BSD-2-Clause
# What the shell tools share. Sourced, not run.

# say WORDS: a line of progress, on standard error, so that output stays clean.
say() { printf '%s\n' "${0##*/}: $*" >&2; }

# die WORDS: one clear line that says what went wrong and what to do; status 1.
die() { say "error: $*"; exit 1; }

# have COMMAND: is there such a command?
have() { command -v "$1" >/dev/null 2>&1; }

# usage_of SCRIPT: its head, for --help.
usage_of() { sed -n '2,${/^#/!q; /SPDX-License/d; s/^# \{0,1\}//; p; }' "$1"; }

# usage: that of the tool that runs.
usage() { usage_of "$top/tool/${0##*/}"; }

# operand WHAT OPTION [OPERAND...]: the operand; dies if there is none.
operand() {
    [ $# -ge 3 ] || die "$2 takes $1"
    printf '%s\n' "$3"
}

# builds: the kinds of builds in tool/builds.
builds() { sed -e '/^#/d' -e 's/[[:space:]].*//' "$top/tool/builds"; }

# kind_options KIND: what configure gets for a kind beside build/config.args, quoted for eval.
kind_options() {
    case $1 in
      cow) ;;
      stock) # what our configure has set is not pristine's; what the user gave stays
        ! grep -q -e '-DCOW_LOCATE_BY=' -e '-DHEAP_PAGE_ALIGN_LOG=' -e '-DCOW_SHARED_MIDDLE=' \
               "$top/build/config.args" || echo "XCFLAGS=" ;;
      profile) # with the census of gc/census.c, for benchmark/pages
        echo "optflags='-O3 -fno-omit-frame-pointer' cppflags='-DCOW_CENSUS=1'" ;;
      debug) # with the errors that gcc 14 makes of C that older ones warn of
        echo "optflags='-O1 -Werror=implicit-function-declaration -Werror=implicit-int" \
             "-Werror=int-conversion -Werror=incompatible-pointer-types'" \
             "cppflags='-DRUBY_DEBUG=1 -DRGENGC_CHECK_MODE=1'" ;;
      strict)
        echo "optflags=-O1 cppflags='-DRUBY_DEBUG=1 -DRGENGC_CHECK_MODE=2'" ;;
      asan) # of jemalloc's blocks it knows nothing; the rest as in CRuby's doc/contributing/building_ruby.md
        echo "--without-jemalloc --disable-yjit optflags=-O1" \
             "cflags='-fsanitize=address -fno-omit-frame-pointer -DUSE_MN_THREADS=0'" ;;
      ubsan) # but for addresses: CRuby packs catch tables, and reads words of strings anywhere
        echo "optflags=-O1 cflags='-fsanitize=undefined -fno-sanitize=alignment -fno-omit-frame-pointer'" ;;
      *) # a way to find mark bits
        others=$(eval "set -- $(cat "$top/build/config.args")"
                 for argument; do
                     case $argument in XCFLAGS=*) printf '%s\n' "${argument#XCFLAGS=}" ;; esac
                 done | sed -e 's/ *-DCOW_LOCATE_BY=[A-Z_]*//' -e "s/'/'\\\\''/g")
        printf "XCFLAGS='%s -DCOW_LOCATE_BY=COW_LOCATE_%s'\\n" "$others" \
            "$(echo "$1" | tr '[:lower:]' '[:upper:]')" ;;
    esac
}

# pin KEY: the value of KEY in upstream.pin.
pin() {
    sed -n "s/^$1=//p" "$top/upstream.pin"
}

# version_in_dir DIR: the version that a source directory of CRuby says it is.
version_in_dir() {
    sed -n -e 's/^#define RUBY_VERSION_TEENY \([0-9]*\).*/\1/p' "$1/version.h" |
        { read -r teeny || teeny='?'
          api=$(sed -n -e 's/^#define RUBY_API_VERSION_MAJOR \([0-9]*\).*/\1/p' \
                       -e 's/^#define RUBY_API_VERSION_MINOR \([0-9]*\).*/\1/p' "$1/include/ruby/version.h" |
                    paste -s -d .)
          echo "$api.$teeny"; }
}

# own_git: from here on git reads tool/gitconfig in place of the user's settings, so that it does the same for
# everybody. By that file it also goes into a tree of another user, as where root builds in a user's clone.
own_git() {
    export GIT_CONFIG_GLOBAL="$top/tool/gitconfig" GIT_CONFIG_NOSYSTEM=1
    unset GIT_DIR GIT_WORK_TREE GIT_INDEX_FILE 2>/dev/null || :
}

# sha256_of FILE
sha256_of() {
    if have sha256sum; then sha256sum <"$1"; else shasum -a 256 <"$1"; fi | cut -d' ' -f1
}

# from_mirrors PATH SHA256 FILE: a file of Debian's archive, by its path there, from the first mirror that has
# it of those that this machine's apt is set up with. Status 1 if none has: apt's words are then in FILE.log.
from_mirrors() {
    helper=/usr/lib/apt/apt-helper
    : >"$3.log"
    have apt-get && [ -x $helper ] || { echo "apt is not here" >"$3.log"; return 1; }
    for base in $(apt-get indextargets --format '$(REPO_URI)' 2>/dev/null | sort -u); do
        if timeout 300 $helper download-file "${base%/}/$1" "$3.part" "SHA256:$2" >>"$3.log" 2>&1; then
            mv "$3.part" "$3"
            rm -f "$3.log"
            return 0
        fi
    done
    rm -f "$3.part"
    return 1
}

# need_room DIR KB: dies unless DIR's file system has KB to spare.
need_room() {
    room=$(df -Pk "$1" | awk 'NR == 2 { print $4 }')
    [ "${room:-0}" -ge "$2" ] ||
        die "not enough space in $1: $((${room:-0} / 1024)) MB free, $(($2 / 1024)) MB needed;" \
            "make room there, or build in a copy of this repository on a larger disk"
}

# revision: CowRuby's own, from gc/revision.h.
revision() {
    sed -n 's/^#define COWRUBY_REVISION "\(.*\)"/\1/p' "$top/gc/revision.h"
}

# parts_installed: our libraries, programs and man pages, as CRuby installs them from its source: their paths
# here and there. Links are left out.
parts_installed() {
    for directory in lib bin man; do
        [ ! -d "$top/$directory" ] || (cd "$top" && find "$directory" -type f)
    done | { LC_ALL=C grep -E '^bin/|\.(rb|1)$' || :; } | LC_ALL=C sort
}

# compile_in DIRECTORY: goes to DIRECTORY/obj, with the compiler cache where there
# is one. Sources and objects stand alike below every such directory, so that it
# finds what another kind of build has compiled.
compile_in() {
    case $PATH in
      "${COW_CCACHE:-}":*) ;;
      *) PATH=${COW_CCACHE:+$COW_CCACHE:}$PATH ;;
    esac
    export PATH
    export CCACHE_BASEDIR="$1" CCACHE_NOHASHDIR=1
    # A ccache that can write nowhere, as where there is no home, fails with all that it is to compile.
    if [ -n "${COW_CCACHE:-}" ]; then
        store=$("$(readlink "$COW_CCACHE/cc")" -k cache_dir 2>/dev/null) &&
            mkdir -p "$store" 2>/dev/null && [ -w "$store" ] ||
            export CCACHE_DIR="$top/build/ccache/store"
    fi
    # Jobs and flags of the make that called us are not CRuby's.
    unset MAKEFLAGS MFLAGS MAKELEVEL MAKEOVERRIDES 2>/dev/null || :
    # The compiler and the flags that our configure saw stand in build/config.args; others may be set by now.
    unset CC CFLAGS CPP CPPFLAGS CXX CXXFLAGS LDFLAGS LIBS AR NM RANLIB RUSTC XCFLAGS 2>/dev/null || :
    mkdir -p "$1/obj"
    cd "$1/obj" || die "$1/obj cannot be entered"
}

# For builds on which CRuby's own tests do not run: leaves out the extensions that only these load. "+" is
# what configure leaves out by itself.
# shellcheck disable=SC2034 # read by who sources this
without_tests='--with-out-ext=+,-test-/*'

# configure_once LOG LABEL [ARGUMENTS]: CRuby's configure with build/config.args and
# ARGUMENTS, unless that was done since they were written. What the first one found out of
# the machine and its compiler the others take from build/configure.cache: two minutes each.
# A configure with flags of its own for the compiler takes only what does not depend on them (functions,
# headers, types), and gives nothing; one with cflags, as for sanitizers, takes nothing either.
# What was built with other arguments, of either kind, or of another CRuby goes: make would keep its objects.
# So nobody measures what COW_BUILD=lean has left. The list of what was installed stays, for make uninstall.
configure_once() {
    log=$1 label=$2
    shift 2
    arguments=$top/build/config.args found=$top/build/configure.cache
    given=$(cat "$arguments")
    # A build is not to name the prefix of another.
    case " $*" in *" --prefix="*) given=$(printf '%s\n' "$given" | sed "s/ '--prefix=[^']*'//") ;; esac
    made_of=$(printf '%s\n' "$*"; printf '%s\n' "$given" "$(pin version)" | cksum)
    [ ! -f .cow-configured ] || [ "$(cat .cow-configured)" = "$made_of" ] ||
        find . -mindepth 1 ! -name .installed.list -delete
    [ -f Makefile ] && [ -f .cow-configured ] && return
    rm -f config.cache
    cache=-C own_flags=
    case " $*" in
      *cflags=*) cache= ;;
      *cppflags=*|*optflags=*) own_flags=yes ;;
    esac
    # Not where a package has come or gone since: it may be another compiler, or a library.
    [ -z "$cache" ] || [ ! -f "$found" ] || [ "$arguments" -nt "$found" ] ||
        [ "$top/upstream.pin" -nt "$found" ] || [ /var/lib/dpkg/status -nt "$found" ] ||
        cp "$found" config.cache
    [ -z "$own_flags" ] || [ ! -f config.cache ] ||
        sed -i -n '/^ac_cv_\(func\|header\|sizeof\|type\|member\)_/p' config.cache
    # It refuses one of other LDFLAGS, too. Those of a caller find the same libraries elsewhere.
    own_ldflags=
    for argument; do
        case $argument in LDFLAGS=*) own_ldflags=${argument#LDFLAGS=} ;; esac
    done
    [ -z "$own_ldflags" ] || [ -n "$own_flags" ] || [ ! -f config.cache ] ||
        sed -i -e '/^ac_cv_env_LDFLAGS_/d' -e "\$a ac_cv_env_LDFLAGS_set=set" \
            -e "\$a ac_cv_env_LDFLAGS_value='$own_ldflags'" config.cache
    eval "set -- $given $cache \"\$@\""
    "$top/tool/progress" "$log" "$label: configure" -- ../src/configure "$@"
    if [ -f config.cache ] && [ -z "$own_ldflags$own_flags" ]; then # others may read it at this moment
        cp config.cache "$found.$$" && mv "$found.$$" "$found"
    fi
    printf '%s\n' "$made_of" >.cow-configured
}

# start_from_cow LOG LABEL [SED]: in a directory of objects in which make has not run: takes from
# build/cow what is the same there, minutes of work each: the Rust part of YJIT, and what extensions'
# extconf.rb found out. The latter not where the compiler or the linker gets flags that may change it,
# where a package has come or gone since, or where the extension's source is newer; and not that of gems,
# which write more files. Who gives LDFLAGS that find the same libraries elsewhere says by SED, a script,
# what they change in Makefiles.
start_from_cow() {
    cow=$top/build/cow/obj
    [ "$cow/exts.mk" -nt "$top/build/config.args" ] && [ ! "$top/upstream.pin" -nt "$cow/exts.mk" ] &&
        [ ! -f exts.mk ] || return 0

    rust=$(sed -n 's/^YJIT_LIBS=//p' Makefile)
    if [ -n "$rust" ] && [ -f "$cow/$rust" ]; then
        mkdir -p "${rust%/*}"
        cp -p "$cow/$rust" "$rust"
    fi

    case " $(cat .cow-configured)" in
      *" cflags="*) return 0 ;;
      *" LDFLAGS="*) [ -n "${3:-}" ] || return 0 ;;
    esac
    [ ! /var/lib/dpkg/status -nt "$cow/exts.mk" ] || return 0
    # Makefiles older than this would be written anew.
    "$top/tool/progress" --append "$1" "$2: make rbconfig.rb" -- \
        make -j"${COW_JOBS:-2}" --no-print-directory rbconfig.rb
    for key in prefix optflags cppflags; do
        value=$(sed -n "s/^  CONFIG.\"$key\". = \(.* \)\{0,1\}\"\(.*\)\")\{0,1\}\$/\2/p" rbconfig.rb)
        printf '%s\n' "s|^\\($key *= *\\(\\\$(DESTDIR)\\)\\{0,1\\}\\).*|\\1$value|"
    done >.cow-extensions.sed
    printf '%s\n' "${3:-}" >>.cow-extensions.sed
    prefix_of_cow=$(sed -n 's/^prefix = //p' "$cow/Makefile")
    (cd "$cow" && find ext -name Makefile ! -path 'ext/-test-/*') |
        while read -r makefile; do
            header=${makefile%/*}/extconf.h source=../src/${makefile%/*}
            [ -z "$(find ../src/lib/mkmf.rb ../src/ext/extmk.rb "$source/extconf.rb" "$source/depend" \
                -newer "$cow/$makefile" 2>/dev/null)" ] || continue
            ! grep -qsF "$prefix_of_cow" "$cow/$header" || continue
            mkdir -p "${makefile%/*}"
            [ ! -f "$cow/$header" ] || cp "$cow/$header" "$header"
            sed -f .cow-extensions.sed "$cow/$makefile" >"$makefile"
        done
}
