/* SPDX-License-Identifier: BSD-2-Clause */
#ifndef COW_REVISION_H
#define COW_REVISION_H
/*
 * CowRuby's own revision, apart from the version of the CRuby it patches
 * (upstream.pin). `ruby -v`, RbConfig::CONFIG["COWRUBY_REVISION"], configure
 * and the name of the distribution all read it here.
 */
#define COWRUBY_REVISION "0.2"
#endif
