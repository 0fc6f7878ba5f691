// SPDX-License-Identifier: BSD-2-Clause
#include "control/netdev_ethtool.h"

#include <errno.h>
#include <linux/ethtool.h>
#include <linux/sockios.h>
#include <net/if.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/util.h"

static int ethtool_ioctl(const char *ifname, void *command)
{
	struct ifreq request = { .ifr_data = command };
	int fd, result = 0;

	if (!copy_string(request.ifr_name, sizeof(request.ifr_name), ifname))
		return -ENODEV;
	/* Any family serves for device ioctls; this one exists in kernels without IPv4 too. */
	fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return -errno;
	if (ioctl(fd, SIOCETHTOOL, &request) < 0)
		result = -errno;
	close(fd);
	return result;
}

/* How many strings the kernel has for features. */
static int feature_count(const char *ifname, uint32_t *count)
{
	union {
		struct ethtool_sset_info info;
		char bytes[sizeof(struct ethtool_sset_info) + sizeof(uint32_t)];
	} u = { .info = { .cmd = ETHTOOL_GSSET_INFO, .sset_mask = 1ull << ETH_SS_FEATURES } };
	int result = ethtool_ioctl(ifname, &u);

	if (result < 0)
		return result;
	if (!u.info.sset_mask)
		return -EOPNOTSUPP;
	memcpy(count, u.bytes + offsetof(struct ethtool_sset_info, data), sizeof(*count));
	return *count ? 0 : -EOPNOTSUPP;
}

/* Bit number of the feature, and how many features there are. */
static int feature_find(const char *ifname, const char *name, uint32_t *count, uint32_t *bit)
{
	struct ethtool_gstrings *strings;
	int result = feature_count(ifname, count);

	if (result < 0)
		return result;
	strings = calloc(1, sizeof(*strings) + (size_t)*count * ETH_GSTRING_LEN);
	if (!strings)
		return -ENOMEM;
	strings->cmd = ETHTOOL_GSTRINGS;
	strings->string_set = ETH_SS_FEATURES;
	strings->len = *count;
	result = ethtool_ioctl(ifname, strings);
	if (result == 0) {
		result = -ENOENT;
		for (*bit = 0; *bit < *count; (*bit)++) {
			if (!strncmp((char *)strings->data + (size_t)*bit * ETH_GSTRING_LEN, name, ETH_GSTRING_LEN)) {
				result = 0;
				break;
			}
		}
	}
	free(strings);
	return result;
}

int ethtool_feature_get(const char *ifname, const char *name, struct ethtool_feature *feature)
{
	struct ethtool_gfeatures *get;
	uint32_t count, bit = 0, blocks;
	int result = feature_find(ifname, name, &count, &bit);

	if (result < 0)
		return result;
	blocks = (count + 31) / 32;
	get = calloc(1, sizeof(*get) + blocks * sizeof(get->features[0]));
	if (!get)
		return -ENOMEM;
	get->cmd = ETHTOOL_GFEATURES;
	get->size = blocks;
	result = ethtool_ioctl(ifname, get);
	if (result == 0) {
		const struct ethtool_get_features_block *block = &get->features[bit / 32];
		uint32_t mask = 1u << bit % 32;

		feature->available = (block->available & mask) && !(block->never_changed & mask);
		feature->wanted = block->requested & mask;
		feature->active = block->active & mask;
	}
	free(get);
	return result;
}

int ethtool_feature_set(const char *ifname, const char *name, bool on)
{
	struct ethtool_sfeatures *set;
	uint32_t count, bit = 0, blocks;
	int result = feature_find(ifname, name, &count, &bit);

	if (result < 0)
		return result;
	blocks = (count + 31) / 32;
	set = calloc(1, sizeof(*set) + blocks * sizeof(set->features[0]));
	if (!set)
		return -ENOMEM;
	set->cmd = ETHTOOL_SFEATURES;
	set->size = blocks;
	set->features[bit / 32].valid = 1u << bit % 32;
	set->features[bit / 32].requested = on ? 1u << bit % 32 : 0;
	result = ethtool_ioctl(ifname, set);
	free(set);
	return result;
}

int ethtool_channels(const char *ifname, unsigned *rx_queues, unsigned *tx_queues)
{
	struct ethtool_channels channels = { .cmd = ETHTOOL_GCHANNELS };
	int result = ethtool_ioctl(ifname, &channels);

	if (result < 0)
		return result;
	if (channels.combined_count + channels.rx_count == 0 || channels.combined_count + channels.tx_count == 0)
		return -EOPNOTSUPP;
	*rx_queues = channels.combined_count + channels.rx_count;
	*tx_queues = channels.combined_count + channels.tx_count;
	return 0;
}

int ethtool_driver(const char *ifname, char *driver, size_t size)
{
	struct ethtool_drvinfo info = { .cmd = ETHTOOL_GDRVINFO };
	int result = ethtool_ioctl(ifname, &info);

	if (result < 0)
		return result;
	info.driver[sizeof(info.driver) - 1] = '\0';
	copy_string(driver, size, info.driver);
	return 0;
}
