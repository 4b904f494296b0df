/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a new thawd makes of what the last one left.
 *
 * A row says what was to be; the machine's folder and process say what is. reconcile_decide() maps
 * the two to what has to be done; reconcile_all() does it, before anybody is served.
 */
#ifndef THAW_DAEMON_RECONCILE_H
#define THAW_DAEMON_RECONCILE_H

#include "vmm/daemon/box.h"

struct boxes;

/** What was found of a box's machine. */
struct reconcile_found {
	bool lives;    /* its thaw-vmm runs */
	bool settled;  /* and its guest does */
	bool snapshot; /* what it was to be paused into is there, whole */
	bool over;     /* its hard time-out has passed */
	bool deleting; /* it was being deleted, or is one that goes when it stops */
};

enum reconcile_action {
	RECONCILE_KEEP,	  /* it is as its row says */
	RECONCILE_ADOPT,  /* it runs: take it over */
	RECONCILE_LOST,	  /* end what is left of its machine; stopped, lost */
	RECONCILE_OVER,	  /* the same: stopped, hard_timeout */
	RECONCILE_STOP,	  /* the same: stopped, for the reason in its row */
	RECONCILE_PAUSED, /* end what is left of its machine; it is paused */
	RECONCILE_REMOVE, /* it was never there, or is to be no more */
};

enum reconcile_action reconcile_decide(enum box_state state, const struct reconcile_found *found);

/** reconcile_all() - all boxes, then what belongs to none of them: machines and folders of thawd's
 * without a row, names of kept snapshots that nobody needs. Return: 0 or -errno (logged). */
int __must_check reconcile_all(struct boxes *boxes);

#endif
