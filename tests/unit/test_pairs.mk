# SPDX-License-Identifier: BSD-2-Clause
$(eval $(call unit_test,test_pairs,cli/pairs common/util common/error common/suggest))
