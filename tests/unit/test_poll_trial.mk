# SPDX-License-Identifier: BSD-2-Clause
$(eval $(call unit_test,test_poll_trial,datapath/poll_trial))
