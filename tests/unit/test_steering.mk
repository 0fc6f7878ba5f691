# SPDX-License-Identifier: BSD-2-Clause
$(eval $(call unit_test,test_steering,control/publisher_steering))
