# SPDX-License-Identifier: BSD-2-Clause
$(eval $(call bpf_test,test_kick_probe,control/kick_probe common/cpulist common/error common/util))
$(eval $(call bpf_test,test_kick_opener,control/kick_opener control/kick_probe common/cpulist common/error common/util))
