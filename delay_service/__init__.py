from ddmq_common.compiled import install

install()
