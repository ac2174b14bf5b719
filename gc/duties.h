#ifndef COW_DUTIES_H
#define COW_DUTIES_H

/*
 * duties: which inherited objects a child finalizes when it ends.
 *
 * Job: memory is left to the system. What is seen outside the process is done as by any process: a file's
 * buffer is written, an extension's free function is called. Such objects have a duty.
 *
 * Entry points: cow_only_duties, cow_has_duty, cow_may_get_duty, cow_page_each_cleanup.
 *
 * Who writes this memory after a fork: a child that ends, the objects with a duty.
 */

/* May the end of an object be seen outside of the process? That of a file, which writes what is
 * in its buffer, and that of an extension's data whose free function does more than to give
 * memory back: it may commit, unlock or unlink. An extension may set the function of untyped data,
 * and the type of typed data, at any time: this is asked again when the process ends. */
static bool
cow_has_duty(VALUE obj)
{
    switch (BUILTIN_TYPE(obj)) {
      case T_FILE:
        return true;
      case T_DATA:
        if (!RTYPEDDATA_P(obj)) return true;
        return RTYPEDDATA_TYPE(obj)->function.dfree != NULL &&
               RTYPEDDATA_TYPE(obj)->function.dfree != RUBY_DEFAULT_FREE;
      default:
        return false;
    }
}

/* May it get a duty later? An extension may give its data another type; procs and methods, which
 * are many, are the VM's own. */
static bool
cow_may_get_duty(VALUE obj)
{
    return BUILTIN_TYPE(obj) == T_DATA && !rb_obj_is_proc(obj) && !rb_obj_is_method(obj);
}

/* At the end of a child the memory of sealed objects is not given back one by one: the system takes
 * all of it. What can be seen outside of the process is done as by any process, also in a
 * daemon, and in a child whose parent has left by exit! or exec. */
static inline bool
cow_only_duties(rb_objspace_t *objspace, const struct heap_page *page)
{
    return objspace->flags.forked_child && page->seal.sealed && !ruby_free_at_exit_p();
}

/* For each object of a page that owns something: what owns nothing has nothing to be freed. */
#define cow_page_each_cleanup(page, obj) \
    for (VALUE word_ = 0, obj = cow_page_next_cleanup((page), &word_, 0); obj; \
         obj = cow_page_next_cleanup((page), &word_, obj))

/* The next such object after +obj+ (0: the first); 0: there is none. +*word+ is its word. */
static inline VALUE
cow_page_next_cleanup(const struct heap_page *page, VALUE *word, VALUE obj)
{
    bits_t above = obj ? ~(bits_t)1 << cow_page_slot(page, obj) % BITS_BITLENGTH : ~(bits_t)0;

    for (; *word < HEAP_PAGE_BITMAP_LIMIT; ++*word, above = ~(bits_t)0) {
        const bits_t rest = page->allocated_bits[*word] & page->cleanup_bits[*word] & above;

        if (rest) return page->start + (*word * BITS_BITLENGTH + ntz_intptr(rest)) * BASE_SLOT_SIZE;
    }
    return 0;
}

#endif /* COW_DUTIES_H */
