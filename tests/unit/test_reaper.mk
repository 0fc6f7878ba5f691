# SPDX-License-Identifier: BSD-2-Clause
$(eval $(call unit_test,test_reaper,common/reaper))
