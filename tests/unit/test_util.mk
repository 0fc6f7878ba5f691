$(eval $(call unit_test,test_util,common/util common/error common/log common/suggest))
