// SPDX-License-Identifier: GPL-2.0-only
/* /dev/thaw: binds the THAW0001 node, checks the contract, hands out what a checkpoint returned. */

#define pr_fmt(fmt) "thaw: " fmt

#include <linux/acpi.h>
#include <linux/errno.h>
#include <linux/fs.h>
#include <linux/io.h>
#include <linux/miscdevice.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/notifier.h>
#include <linux/platform_device.h>
#include <linux/random.h>
#include <linux/sched/signal.h>
#include <linux/string.h>
#include <linux/sysfs.h>
#include <linux/uaccess.h>

#include "hold.h"

#define THAW_REGISTERS_BYTES 0x1000u
#define THAW_REQUEST_OFFSET  (THAW_REQUEST_GPA - THAW_CONTROL_GPA)

static_assert(THAW_REQUEST_OFFSET + THAW_REQUEST_BYTES <= THAW_NODE_BYTES - THAW_REGISTERS_BYTES);
static_assert(sizeof(struct thaw_control) <= THAW_VMGENID_OFFSET);

static atomic_t thaw_bound = ATOMIC_INIT(0);

/* The request is handed out once, and no copy of it stays in the mailbox: it may carry secrets. */
static int thaw_take_request(struct thaw *thaw, struct thaw_checkpoint *call)
{
	u32 len_bytes = READ_ONCE(thaw->control->request_len_bytes);
	int ret = 0;

	if (len_bytes > THAW_REQUEST_BYTES) {
		pr_err("the host left a request of %u bytes, at most %u fit\n", len_bytes,
		       THAW_REQUEST_BYTES);
		len_bytes = 0;
	}
	call->request_len_bytes = len_bytes;
	if (len_bytes && len_bytes <= call->request_capacity_bytes &&
	    copy_to_user(u64_to_user_ptr(call->request_ptr), thaw->request, len_bytes))
		ret = -EFAULT;
	memzero_explicit(thaw->request, len_bytes);
	WRITE_ONCE(thaw->control->request_len_bytes, 0);
	return ret;
}

static int thaw_command(struct thaw *thaw, enum thaw_command command)
{
	writel(command, thaw->registers + THAW_REG_COMMAND);
	return thaw_status_to_errno(readl(thaw->registers + THAW_REG_STATUS));
}

static int thaw_checkpoint_locked(struct thaw *thaw, struct thaw_checkpoint *call)
{
	struct timespec64 wall;
	int ret = thaw_hold_checkpoint(thaw, &wall);
	int request_ret = 0;

	if (ret < 0)
		return ret;
	WRITE_ONCE(thaw->checkpoints, thaw->checkpoints + 1);
	call->generation = thaw->generation;
	call->wall_sec = wall.tv_sec;
	call->wall_nsec = wall.tv_nsec;
	call->request_len_bytes = 0;
	memcpy(call->vm_id, thaw->vm_id, sizeof(call->vm_id));
	memcpy(call->hostname, thaw->hostname, sizeof(call->hostname));
	if (ret == 0) {
		/* Not in the hold: user memory may fault, which needs other tasks to run. */
		request_ret = thaw_take_request(thaw, call);
		thaw_command(thaw, THAW_CMD_RESUMED);
	}
	return request_ret ? request_ret : ret;
}

static long thaw_checkpoint(struct thaw *thaw, struct thaw_checkpoint __user *arg)
{
	struct thaw_checkpoint call;
	int ret;

	if (copy_from_user(&call, arg, sizeof(call)))
		return -EFAULT;
	if (call.size_bytes != sizeof(call) || call.flags || call.reserved)
		return -EINVAL;
	if (!call.request_ptr)
		call.request_capacity_bytes = 0;
	/* What can fail is found out while there is still one machine: a clone has no second try.
	 */
	if (!access_ok(u64_to_user_ptr(call.request_ptr), call.request_capacity_bytes))
		return -EFAULT;
	/* A reseed before the generator is ready is none: it would only mix the seed in. */
	ret = wait_for_random_bytes();
	if (ret)
		return ret;
	/* A signal of the template's life, or a caller being killed, has no place in every clone.
	 */
	if (signal_pending(current))
		return -ERESTARTSYS;
	if (!mutex_trylock(&thaw->lock))
		return -EBUSY;
	ret = thaw_checkpoint_locked(thaw, &call);
	mutex_unlock(&thaw->lock);
	if (ret >= 0 && copy_to_user(arg, &call, sizeof(call)))
		ret = -EFAULT;
	return ret;
}

static long thaw_ready(struct thaw *thaw)
{
	int ret = mutex_lock_interruptible(&thaw->lock);

	if (ret)
		return ret;
	ret = thaw_command(thaw, THAW_CMD_READY);
	mutex_unlock(&thaw->lock);
	return ret;
}

static long thaw_ioctl(struct file *file, unsigned int command, unsigned long arg)
{
	struct thaw *thaw = container_of(file->private_data, struct thaw, misc);

	switch (command) {
	case THAW_CHECKPOINT:
		return thaw_checkpoint(thaw, (struct thaw_checkpoint __user *)arg);
	case THAW_READY:
		return thaw_ready(thaw);
	default:
		return -ENOTTY;
	}
}

/* The owner keeps the module loaded while the device is open, thus also while a call is under way.
 */
static const struct file_operations thaw_fops = {
	.owner = THIS_MODULE,
	.unlocked_ioctl = thaw_ioctl,
	.compat_ioctl = compat_ptr_ioctl,
	.llseek = noop_llseek,
};

static struct thaw *thaw_of_device(struct device *dev)
{
	return container_of((struct miscdevice *)dev_get_drvdata(dev), struct thaw, misc);
}

static ssize_t generation_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%llu\n", smp_load_acquire(&thaw_of_device(dev)->generation));
}
static DEVICE_ATTR_RO(generation);

static ssize_t vmfork_count_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%d\n", atomic_read(&thaw_of_device(dev)->vmfork_count));
}
static DEVICE_ATTR_RO(vmfork_count);

static ssize_t checkpoints_show(struct device *dev, struct device_attribute *attr, char *buf)
{
	return sysfs_emit(buf, "%llu\n", READ_ONCE(thaw_of_device(dev)->checkpoints));
}
static DEVICE_ATTR_RO(checkpoints);

static struct attribute *thaw_attrs[] = {
	&dev_attr_generation.attr,
	&dev_attr_vmfork_count.attr,
	&dev_attr_checkpoints.attr,
	NULL,
};
ATTRIBUTE_GROUPS(thaw);

/* Counts what the random generator itself reports, so that a test need not guess from bytes. */
static int thaw_vmfork_notify(struct notifier_block *block, unsigned long action, void *data)
{
	atomic_inc(&container_of(block, struct thaw, vmfork)->vmfork_count);
	return NOTIFY_DONE;
}

static int thaw_map(struct platform_device *pdev, struct thaw *thaw)
{
	struct resource *res = platform_get_resource(pdev, IORESOURCE_MEM, 0);
	void *mailbox;

	if (!res || resource_size(res) < THAW_NODE_BYTES)
		return dev_err_probe(&pdev->dev, -EINVAL, "node too small: %pR\n", res);
	if (!devm_request_mem_region(&pdev->dev, res->start, THAW_NODE_BYTES, "thaw"))
		return dev_err_probe(&pdev->dev, -EBUSY, "%pR is in use\n", res);
	thaw->registers = devm_ioremap(&pdev->dev, res->start, THAW_REGISTERS_BYTES);
	if (!thaw->registers)
		return -ENOMEM;
	mailbox = devm_memremap(&pdev->dev, res->start + THAW_REGISTERS_BYTES,
				THAW_NODE_BYTES - THAW_REGISTERS_BYTES, MEMREMAP_WB);
	if (IS_ERR(mailbox))
		return dev_err_probe(&pdev->dev, PTR_ERR(mailbox), "can't map the mailbox\n");
	thaw->control = mailbox;
	thaw->request = mailbox + THAW_REQUEST_OFFSET;
	return 0;
}

static int thaw_check_contract(struct platform_device *pdev, const struct thaw *thaw)
{
	u32 magic = readl(thaw->registers + THAW_REG_MAGIC);
	u32 version = readl(thaw->registers + THAW_REG_VERSION);

	if (magic != THAW_MAGIC || version != THAW_ABI_VERSION)
		return dev_err_probe(&pdev->dev, -ENODEV,
				     "registers: magic %#x version %u, expected %#x version %u\n",
				     magic, version, THAW_MAGIC, THAW_ABI_VERSION);
	if (thaw->control->magic != THAW_MAGIC || thaw->control->version != THAW_ABI_VERSION)
		return dev_err_probe(
			&pdev->dev, -ENODEV,
			"control page: magic %#x version %u, expected %#x version %u\n",
			thaw->control->magic, thaw->control->version, THAW_MAGIC, THAW_ABI_VERSION);
	return 0;
}

/* A boot, too, gets a seed and an identity of its own; the clock it has from kvm-clock. */
static void thaw_take_boot_identity(struct thaw *thaw)
{
	struct thaw_control *control = thaw->control;

	thaw->generation = READ_ONCE(control->generation);
	thaw_take_identity(thaw);
	add_device_randomness(control->seed, sizeof(control->seed));
	memzero_explicit(control->seed, sizeof(control->seed));
}

static int thaw_start(struct platform_device *pdev)
{
	struct thaw *thaw = devm_kzalloc(&pdev->dev, sizeof(*thaw), GFP_KERNEL);
	int ret;

	if (!thaw)
		return -ENOMEM;
	mutex_init(&thaw->lock);
	ret = thaw_map(pdev, thaw);
	if (ret)
		return ret;
	ret = thaw_check_contract(pdev, thaw);
	if (ret)
		return ret;
	thaw_take_boot_identity(thaw);
	thaw->vmfork.notifier_call = thaw_vmfork_notify;
	ret = register_random_vmfork_notifier(&thaw->vmfork);
	if (ret)
		return dev_err_probe(&pdev->dev, ret, "can't register the vmfork notifier\n");
	thaw->misc.minor = MISC_DYNAMIC_MINOR;
	thaw->misc.name = "thaw";
	thaw->misc.fops = &thaw_fops;
	thaw->misc.mode = 0600;
	thaw->misc.groups = thaw_groups;
	thaw->misc.parent = &pdev->dev;
	platform_set_drvdata(pdev, thaw);
	ret = misc_register(&thaw->misc);
	if (ret) {
		unregister_random_vmfork_notifier(&thaw->vmfork);
		return dev_err_probe(&pdev->dev, ret, "can't register /dev/thaw\n");
	}
	return 0;
}

static int thaw_probe(struct platform_device *pdev)
{
	int ret;

	if (atomic_cmpxchg(&thaw_bound, 0, 1))
		return dev_err_probe(&pdev->dev, -EBUSY, "one node is enough\n");
	ret = thaw_start(pdev);
	if (ret)
		atomic_set(&thaw_bound, 0);
	return ret;
}

static void thaw_remove(struct platform_device *pdev)
{
	struct thaw *thaw = platform_get_drvdata(pdev);

	misc_deregister(&thaw->misc);
	unregister_random_vmfork_notifier(&thaw->vmfork);
	atomic_set(&thaw_bound, 0);
}

static const struct acpi_device_id thaw_acpi_ids[] = {{"THAW0001", 0}, {}};
MODULE_DEVICE_TABLE(acpi, thaw_acpi_ids);

/* Not to be unbound by hand: an open file would outlive the mappings. Unloading waits for the last
 * one. */
static struct platform_driver thaw_driver = {
	.probe = thaw_probe,
	.remove = thaw_remove,
	.driver =
		{
			.name = "thaw",
			.acpi_match_table = thaw_acpi_ids,
			.suppress_bind_attrs = true,
		},
};

static int __init thaw_init(void)
{
	int ret = thaw_hold_init();

	return ret ? ret : platform_driver_register(&thaw_driver);
}

static void __exit thaw_exit(void)
{
	platform_driver_unregister(&thaw_driver);
}

module_init(thaw_init);
module_exit(thaw_exit);

MODULE_DESCRIPTION("Checkpoint call of a thaw sandbox");
MODULE_AUTHOR("The thaw project");
MODULE_LICENSE("GPL");
