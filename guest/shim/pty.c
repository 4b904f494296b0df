// SPDX-License-Identifier: Apache-2.0
/*
 * A command with a terminal.
 *
 * The shim has the master side, twice: one fd to write to and one to read from, so that pumps and
 * events need not know. The command has the other side as 0, 1 and 2, and as its controlling
 * terminal (spawn.c). When the last process that has it is gone a read of ours gives what is left
 * and then EIO: the end of the output. When the command, leader of its session, ends, the kernel
 * hangs the terminal up for all others of the session.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <unistd.h>

#include "guest/shim/exec.h"
#include "guest/shim/shim.h"

/* UTF-8 is what everything speaks: erasing takes characters, not bytes. */
static void pty_settings(int fd)
{
	struct termios settings;

	if (tcgetattr(fd, &settings) < 0)
		return;
	settings.c_iflag |= IUTF8;
	(void)tcsetattr(fd, TCSANOW, &settings);
}

static int pty_peer(struct conn *c, int master)
{
	const struct winsize size = {.ws_col = c->exec.ext.size.cols,
				     .ws_row = c->exec.ext.size.rows};
	int unlock = 0, fd;

	if (ioctl(master, TIOCSPTLCK, &unlock) < 0 || ioctl(master, TIOCSWINSZ, &size) < 0)
		return -errno;
	/* Not by its name in /dev/pts: a command may have mounted something there. */
	fd = ioctl(master, TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	pty_settings(fd);
	/* The group is tty's, by the mount. */
	if (fchown(fd, c->exec.uid, (gid_t)-1) < 0)
		shim_log(4, "terminal of user %u: %m", c->exec.uid);
	return fd;
}

int pty_open(struct shim *shim, struct conn *c)
{
	int master, peer, ret;

	master = loop_open(shim->pts_fd, "ptmx", O_RDWR | O_NOCTTY | O_NONBLOCK);
	if (master < 0)
		return master;
	c->fd[SLOT_STDIN] = master;
	peer = pty_peer(c, master);
	if (peer < 0)
		return peer;
	c->fd[SLOT_STDOUT] = fcntl(master, F_DUPFD_CLOEXEC, 0);
	ret = c->fd[SLOT_STDOUT] < 0 ? -errno : loop_watch(shim, c, SLOT_STDOUT, EPOLLIN);
	if (!ret)
		ret = loop_watch(shim, c, SLOT_STDIN, EPOLLOUT);
	if (ret) {
		close(peer);
		return ret;
	}
	c->ready[SLOT_STDIN] = true;
	return peer;
}

void pty_resize(struct conn *c, const struct shim_size *size)
{
	const struct winsize winsize = {.ws_col = size->cols, .ws_row = size->rows};

	if (c->fd[SLOT_STDIN] >= 0)
		(void)ioctl(c->fd[SLOT_STDIN], TIOCSWINSZ, &winsize);
}

void pty_eof(struct conn *c)
{
	struct termios settings;
	char eof[2];
	size_t n = 1;
	ssize_t done;

	if (c->fd[SLOT_STDIN] < 0) {
		c->stdin_eof = false;
		return;
	}
	if (!c->ready[SLOT_STDIN])
		return;
	eof[0] = eof[1] = 4;
	if (!tcgetattr(c->fd[SLOT_STDIN], &settings) && settings.c_cc[VEOF])
		eof[0] = eof[1] = (char)settings.c_cc[VEOF];
	/* In the middle of a line the first one only ends the line. */
	if (c->stdin_last && c->stdin_last != '\n' && c->stdin_last != '\r')
		n = 2;
	done = write(c->fd[SLOT_STDIN], eof, n);
	if (done < 0 && errno == EAGAIN) {
		c->ready[SLOT_STDIN] = false;
		return;
	}
	/* Written, or nobody has the terminal any more. */
	c->stdin_eof = false;
	c->stdin_last = 0;
}
