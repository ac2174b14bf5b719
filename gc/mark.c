/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * mark: marks one object by its bits alone.
 *
 * Job: gc_mark finds where all bits of an object stand, once, and neither reads nor writes the object. An
 * object is read when it is popped from the mark stack, and is prefetched before. A leaf, an old object that
 * refers to nothing that could die, is not read at all until a write barrier says that it may have changed.
 *
 * Entry points: gc_mark, gc_mark_set, gc_aging, gc_grey, RVALUE_AGE_INC and rgengc_check_relation, which
 * replace upstream's; cow_leaf_p, cow_note_leaf and cow_forget_leaf; cow_pop_mark_stack_ahead and
 * cow_mark_ahead_take; cow_writebarrier_leaf and cow_writebarrier_marking, the rare ways of the write
 * barrier; cow_marked_p.
 *
 * Who writes this memory after a fork: a full collection writes the mark bits of all pages, a minor one those
 * of open pages; the write barrier clears the leaf bit of an object that is written.
 */

static void gc_writebarrier_incremental(VALUE a, VALUE b, rb_objspace_t *objspace);
static int rgengc_remember(rb_objspace_t *objspace, VALUE obj);

/* The rare ways are functions of their own, so that the usual ways save no registers. */
NOINLINE(static void cow_mark_unseen(rb_objspace_t *objspace, VALUE obj));
NOINLINE(static void cow_mark_with_bits(rb_objspace_t *objspace, VALUE obj, cow_bits_t *word, size_t stride,
                                        cow_bits_t mask));
NOINLINE(static void cow_note_leaf(rb_objspace_t *objspace, VALUE obj));
NOINLINE(static void cow_forget_leaf(VALUE obj));
NOINLINE(static void cow_writebarrier_leaf(VALUE a, VALUE b, rb_objspace_t *objspace));
NOINLINE(static void cow_writebarrier_marking(VALUE a, VALUE b, rb_objspace_t *objspace));

/* Counts an object as old, and sets its uncollectible bit. */
static inline void
cow_set_old_uncollectible(rb_objspace_t *objspace, const struct cow_object_bits *bits, VALUE obj)
{
    /* In sealed pages these bits stay set from one full collection to the next. */
    if (!cow_bit_test(bits, COW_BITMAP_UNCOLLECTIBLE)) cow_bit_set(bits, COW_BITMAP_UNCOLLECTIBLE);
    objspace->rgengc.old_objects++;

#if RGENGC_PROFILE >= 2
    objspace->profile.total_promoted_count++;
    objspace->profile.promoted_types[BUILTIN_TYPE(obj)]++;
#endif
}

/* Adds one to the age of a young object; upstream's name. */
static inline void
RVALUE_AGE_INC(rb_objspace_t *objspace, VALUE obj, const struct cow_object_bits *bits)
{
    if (RGENGC_CHECK_MODE && cow_bits_are_old(bits)) {
        rb_bug("RVALUE_AGE_INC: can not increment age of OLD object %s.", rb_obj_info(obj));
    }

    if (cow_bit_test(bits, COW_BITMAP_AGE_LOW)) {
        cow_bit_clear(bits, COW_BITMAP_AGE_LOW);
        cow_bit_set(bits, COW_BITMAP_AGE_HIGH);
    }
    else {
        cow_bit_set(bits, COW_BITMAP_AGE_LOW);
        if (cow_bit_test(bits, COW_BITMAP_AGE_HIGH)) {
            RB_FL_SET_RAW(obj, RUBY_FL_PROMOTED);
            RB_DEBUG_COUNTER_INC(obj_promote);
            cow_set_old_uncollectible(objspace, bits, obj);
        }
    }

    check_rvalue_consistency(objspace, obj);
}

/* Remembers the old object that is being marked if it refers to a young one; upstream's name. In a
 * preparation for a fork there will be no young one: the object becomes old, too, or uncollectible
 * (cow_seal_marks_finish). The first collection of each child would else visit most objects. */
static void
rgengc_check_relation(rb_objspace_t *objspace, VALUE obj, const struct cow_object_bits *bits)
{
    const VALUE old_parent = objspace->rgengc.parent_object;

    if (old_parent) {
        if (!cow_bits_are_old(bits) && !objspace->flags.promote_all) {
            rgengc_remember(objspace, old_parent);
        }
    }

    GC_ASSERT(old_parent == objspace->rgengc.parent_object);
}

/* Marks the object. Gives 0 if it was marked before. Upstream's name. */
static inline int
gc_mark_set(rb_objspace_t *objspace, VALUE obj, const struct cow_object_bits *bits)
{
    check_rvalue_consistency(objspace, obj);
    return cow_mark_if_unmarked((uintptr_t)obj, bits);
}

/* Ages an object that was just marked; in a preparation for a fork makes it old at once. Gives whether it was
 * old before. Upstream's name. */
static inline bool
gc_aging(rb_objspace_t *objspace, VALUE obj, const struct cow_object_bits *bits)
{
    /* Without full collections (GC.config, rgengc_allow_full_mark) nothing would free an old object. One that
     * is under way goes on as it began, or old objects would lose their uncollectible bits. */
    GC_ASSERT(is_full_marking(objspace) || !objspace->flags.promote_all);
    if (!gc_config_full_mark_val && !is_full_marking(objspace)) return false;

    GC_ASSERT(RVALUE_MARKING(objspace, obj) == FALSE);
    check_rvalue_consistency(objspace, obj);

    const bool old = cow_bits_are_old(bits);

    if (old) {
        if (is_full_marking(objspace)) {
            GC_ASSERT(!cow_bit_test(bits, COW_BITMAP_UNCOLLECTIBLE) || GET_HEAP_PAGE(obj)->seal.sealed);
            cow_set_old_uncollectible(objspace, bits, obj);
        }
    }
    else if (!cow_bit_test(bits, COW_BITMAP_WB_UNPROTECTED)) {
        gc_report(3, objspace, "gc_aging: YOUNG: %s\n", rb_obj_info(obj));
        do RVALUE_AGE_INC(objspace, obj, bits);
        while (objspace->flags.promote_all && !cow_bits_are_old(bits));
    }
    check_rvalue_consistency(objspace, obj);

    objspace->marked_slots++;
    return old;
}

/* Pushes a marked object on the mark stack, so that its references are marked; upstream's name. */
static inline void
gc_grey(rb_objspace_t *objspace, VALUE obj, const struct cow_object_bits *bits)
{
#if RGENGC_CHECK_MODE
    if (RVALUE_MARKED(objspace, obj) == FALSE) rb_bug("gc_grey: %s is not marked.", rb_obj_info(obj));
    if (RVALUE_MARKING(objspace, obj) == TRUE) rb_bug("gc_grey: %s is marking/remembered.", rb_obj_info(obj));
#endif

    if (is_incremental_marking(objspace)) {
        cow_bit_set(bits, COW_BITMAP_MARKING);
    }

    push_mark_stack(&objspace->mark_stack, obj);
}

/* Marks the object during a collection; upstream's name. */
static inline void
gc_mark(rb_objspace_t *objspace, VALUE obj)
{
    GC_ASSERT(during_gc);

    /* Many successive objects have the same class: it is recognized before any register is saved. */
    if (obj == objspace->rgengc.marked_old) return;

    cow_mark_unseen(objspace, obj);
}

/* Marks an object that is not the last marked old one. Many references are to objects that are marked
 * already; this leaves them without saving a register. */
static void
cow_mark_unseen(rb_objspace_t *objspace, VALUE obj)
{
    const struct cow_object_bits bits = cow_object_bits((uintptr_t)obj);

    check_rvalue_consistency(objspace, obj);
    if (cow_bits_are_marked((uintptr_t)obj, &bits)) {
        const VALUE parent = objspace->rgengc.parent_object;

        /* The age is read only if it matters, or if the same object comes again. */
        if (!parent && obj != objspace->rgengc.marked_last) {
            objspace->rgengc.marked_last = obj;
            return;
        }
        if (cow_bits_are_old(&bits)) {
            objspace->rgengc.marked_old = obj;
            return;
        }
        if (!parent) return;
    }
    cow_mark_with_bits(objspace, obj, bits.word, bits.stride, bits.mask);
}

/* The rest of gc_mark. The bits are passed one by one, because a struct of this size is passed in memory. */
static void
cow_mark_with_bits(rb_objspace_t *objspace, VALUE obj, cow_bits_t *word, size_t stride, cow_bits_t mask)
{
    const struct cow_object_bits bits = {.word = word, .stride = stride, .mask = mask};

    rgengc_check_relation(objspace, obj, &bits);
    if (!gc_mark_set(objspace, obj, &bits)) return; /* already marked */

    if (gc_aging(objspace, obj, &bits) && cow_bit_test(&bits, COW_BITMAP_LEAF)) return;
    gc_grey(objspace, obj, &bits);
}

/* Would rb_gc_mark_children find nothing to mark in +obj+? True of a number, and of a string that is not
 * shared and whose class is the last marked old object. */
static inline bool
cow_leaf_p(rb_objspace_t *objspace, VALUE obj)
{
    const VALUE flags = RBASIC(obj)->flags;
    const unsigned int types = 1u << T_FLOAT | 1u << T_BIGNUM | 1u << T_STRING;

    if (!(types >> (flags & RUBY_T_MASK) & 1) || flags & FL_EXIVAR) return false;
    if ((flags & RUBY_T_MASK) != T_STRING) return true;
    return RBASIC(obj)->klass == objspace->rgengc.marked_old &&
        (flags & (RSTRING_NOEMBED | RUBY_ELTS_SHARED)) != (RSTRING_NOEMBED | RUBY_ELTS_SHARED);
}

/* Records +obj+, in which there is nothing to mark now, as a leaf if it stays one until a write barrier sees
 * it: the next full marking need not read it then. */
static void
cow_note_leaf(rb_objspace_t *objspace, VALUE obj)
{
    if (!is_full_marking(objspace)) return;
    /* An object keeps its class alive, so a leaf's class must be one that is never freed. */
    if (BUILTIN_TYPE(obj) == T_STRING && RBASIC(obj)->klass != rb_cString) return;

    const struct cow_object_bits bits = cow_object_bits((uintptr_t)obj);

    /* Children share the bitmaps of sealed pages. */
    if (cow_bits_are_old(&bits) && !GET_HEAP_PAGE(obj)->seal.sealed)
        cow_bit_assign(&bits, COW_BITMAP_LEAF, true);
}

/* How many popped objects are prefetched while others are marked. In a small heap few objects are out of the
 * cache, and the order in which objects refer to each other is the better one, so few are ahead. */
enum { COW_MARK_AHEAD = 16, COW_MARK_AHEAD_SMALL = 4, COW_SMALL_HEAP_BYTES = 16 * 1024 * 1024 };

/* The popped objects that are being prefetched: a queue. */
struct cow_mark_ahead {
    VALUE objects[COW_MARK_AHEAD];
    unsigned int first, count, limit;
};

/* Takes the first object of the queue. */
static inline VALUE
cow_mark_ahead_take(struct cow_mark_ahead *ahead)
{
    COW_ASSERT(ahead->count > 0);
    ahead->count--;
    return ahead->objects[ahead->first++ % COW_MARK_AHEAD];
}

/* Pops an object of the mark stack by way of the queue, which it fills. Gives false if both are empty. */
static inline bool
cow_pop_mark_stack_ahead(mark_stack_t *stack, struct cow_mark_ahead *ahead, VALUE *obj)
{
    VALUE next;

    while (ahead->count < ahead->limit && pop_mark_stack(stack, &next)) {
        if (next == Qundef) continue; /* skip */
        if (ahead->count == 0 && is_mark_stack_empty(stack)) {
            /* There is nothing to mark meanwhile. */
            *obj = next;
            return true;
        }
        __builtin_prefetch((const void *)next);
        ahead->objects[(ahead->first + ahead->count++) % COW_MARK_AHEAD] = next;
    }
    if (ahead->count == 0) return false;
    *obj = cow_mark_ahead_take(ahead);
    return true;
}

/* Clears the leaf bit: what is written into +obj+ may be a reference. Takes the VM lock, because objects of
 * other Ractors have bits in the same word. */
static void
cow_forget_leaf(VALUE obj)
{
    int lev = rb_gc_vm_lock_no_barrier();
    const struct cow_object_bits bits = cow_object_bits((uintptr_t)obj);

    cow_bit_assign(&bits, COW_BITMAP_LEAF, false);
    rb_gc_vm_unlock_no_barrier(lev);
}

/* The write barrier where +a+ is a leaf. It calls the write barrier again from a function of its own, so that
 * the usual way saves no registers. */
static void
cow_writebarrier_leaf(VALUE a, VALUE b, rb_objspace_t *objspace)
{
    cow_forget_leaf(a);
    rb_gc_impl_writebarrier(objspace, a, b);
}

/* The write barrier during an incremental marking, likewise. */
static void
cow_writebarrier_marking(VALUE a, VALUE b, rb_objspace_t *objspace)
{
    bool retry = false;
    int lev = rb_gc_vm_lock_no_barrier();
    {
        if (is_incremental_marking(objspace)) {
            gc_writebarrier_incremental(a, b, objspace);
        }
        else {
            retry = true;
        }
    }
    rb_gc_vm_unlock_no_barrier(lev);

    if (retry) rb_gc_impl_writebarrier(objspace, a, b);
}

/* Is the object marked? For rb_gc_names_now. */
static bool
cow_marked_p(void *objspace, VALUE obj)
{
    return RVALUE_MARKED(objspace, obj);
}
