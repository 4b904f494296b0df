/* SPDX-License-Identifier: Apache-2.0 */
/* The doubly linked list of the vsock device: a ring through a head; a link to itself is in no
 * list. */
#ifndef THAW_VIRTIO_VSOCK_LINK_H
#define THAW_VIRTIO_VSOCK_LINK_H

#include "vmm/util/types.h"

struct vsock_link {
	struct vsock_link *prev, *next;
};

/** vsock_link_init() - an empty list, or a link that is in none. */
static inline void vsock_link_init(struct vsock_link *link)
{
	link->prev = link->next = link;
}

/** vsock_link_empty() - nothing in list @head; or link @head is in no list. */
static inline bool vsock_link_empty(const struct vsock_link *head)
{
	return head->next == head;
}

/** vsock_link_del() - take @link out of its list, if it is in one. */
static inline void vsock_link_del(struct vsock_link *link)
{
	link->prev->next = link->next;
	link->next->prev = link->prev;
	vsock_link_init(link);
}

/** vsock_link_add_tail() - put @link, which is in no list, at the end of list @head. */
static inline void vsock_link_add_tail(struct vsock_link *head, struct vsock_link *link)
{
	link->prev = head->prev;
	link->next = head;
	head->prev->next = link;
	head->prev = link;
}

#endif
