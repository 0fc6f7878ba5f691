$(eval $(call unit_test,test_cpulist,common/cpulist common/util))
