// SPDX-License-Identifier: Apache-2.0
// A transmit-only 8250. National Semiconductor PC16550D data sheet §8.
#include "vmm/kvm/serial.h"

#include <poll.h>
#include <string.h>
#include <unistd.h>

#define SERIAL_DATA 0
#define SERIAL_IER  1
#define SERIAL_IIR  2 /* write: FCR */
#define SERIAL_LCR  3
#define SERIAL_MCR  4
#define SERIAL_LSR  5
#define SERIAL_MSR  6
#define SERIAL_SCR  7

#define LCR_DLAB      0x80
#define MCR_LOOP      0x10
#define LSR_TX_EMPTY  0x60 /* holding and shift register empty: always ready */
#define MSR_CONNECTED 0xb0 /* DCD, DSR, CTS */
#define IIR_NONE      0x01
#define IIR_FIFO      0xc0

void serial_init(struct serial *serial, int out_fd)
{
	*serial = (struct serial){.out_fd = out_fd};
}

void serial_flush(struct serial *serial)
{
	struct pollfd pfd = {.fd = serial->out_fd, .events = POLLOUT};
	u32 len_bytes = serial->used_bytes;

	serial->used_bytes = 0;
	if (serial->out_fd < 0 || !len_bytes)
		return;
	/* A pipe that polls writable takes PIPE_BUF bytes without blocking, and a line is shorter.
	 */
	if (poll(&pfd, 1, 0) != 1 || !(pfd.revents & POLLOUT))
		return;
	if (write(serial->out_fd, serial->line, len_bytes) < 0)
		serial->out_fd = -1; /* the reader is gone: drop from now on */
}

static void serial_put(struct serial *serial, u8 byte)
{
	serial->line[serial->used_bytes++] = byte;
	if (byte == '\n' || serial->used_bytes == SERIAL_LINE_BYTES)
		serial_flush(serial);
}

static void serial_write(struct serial *serial, u64 offset, u8 value)
{
	bool dlab = serial->lcr & LCR_DLAB;

	switch (offset) {
	case SERIAL_DATA:
		if (dlab)
			serial->dll = value;
		else if (!(serial->mcr & MCR_LOOP))
			serial_put(serial, value);
		break;
	case SERIAL_IER:
		if (dlab)
			serial->dlm = value;
		else
			serial->ier = value & 0xf;
		break;
	case SERIAL_IIR:
		serial->fcr = value;
		break;
	case SERIAL_LCR:
		serial->lcr = value;
		break;
	case SERIAL_MCR:
		serial->mcr = value & 0x1f;
		break;
	case SERIAL_SCR:
		serial->scr = value;
		break;
	default:
		break;
	}
}

/** In loop-back mode the modem status shows the control lines: Linux's probe looks for that. */
static u8 serial_modem_status(const struct serial *serial)
{
	u8 mcr = serial->mcr;

	if (!(mcr & MCR_LOOP))
		return MSR_CONNECTED;
	return (u8)((mcr & 1) << 5 | (mcr & 2) << 3 | (mcr & 4) << 4 | (mcr & 8) << 4);
}

static u8 serial_read(const struct serial *serial, u64 offset)
{
	bool dlab = serial->lcr & LCR_DLAB;

	switch (offset) {
	case SERIAL_DATA:
		return dlab ? serial->dll : 0;
	case SERIAL_IER:
		return dlab ? serial->dlm : serial->ier;
	case SERIAL_IIR:
		return IIR_NONE | (serial->fcr & 1 ? IIR_FIFO : 0);
	case SERIAL_LCR:
		return serial->lcr;
	case SERIAL_MCR:
		return serial->mcr;
	case SERIAL_LSR:
		return LSR_TX_EMPTY;
	case SERIAL_MSR:
		return serial_modem_status(serial);
	case SERIAL_SCR:
		return serial->scr;
	default:
		return 0xff;
	}
}

void serial_access(void *opaque, u64 offset, void *data, u32 len_bytes, bool is_write)
{
	struct serial *serial = opaque;

	if (len_bytes != 1) {
		if (!is_write)
			memset(data, 0xff, len_bytes);
		return;
	}
	if (is_write)
		serial_write(serial, offset, *(u8 *)data);
	else
		*(u8 *)data = serial_read(serial, offset);
}
