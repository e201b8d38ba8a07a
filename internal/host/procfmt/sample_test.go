package procfmt_test

// Real kernel output, shortened, with numbers changed where zeroes would hide a mixed-up
// field.
const (
	v2CPUStat     = "usage_usec 47423438\nuser_usec 28666144\nsystem_usec 18757294\nnice_usec 0\ncore_sched.force_idle_usec 0\nnr_periods 10\nnr_throttled 3\nthrottled_usec 251\nnr_bursts 0\nburst_usec 0\n"
	v2RootCPUStat = "usage_usec 7\nuser_usec 4\nsystem_usec 3\n"
	v1CPUStat     = "nr_periods 4\nnr_throttled 2\nthrottled_time 123456789\nnr_bursts 0\nburst_time 0\n"

	pressure = "some avg10=0.00 avg60=0.14 avg300=0.24 total=7422964\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=12\n"

	v1MemoryStat = "cache 9244672\nrss 9834496\nrss_huge 0\nshmem 9084928\nmapped_file 7626752\ndirty 4096\nwriteback 0\nswap 0\nswapcached 0\n" +
		"pgpgin 36835\ninactive_anon 0\nactive_anon 1531904\ninactive_file 4096\nactive_file 155648\nunevictable 17387520\n" +
		"hierarchical_memory_limit 9223372036854771712\ntotal_cache 46399488\ntotal_rss 18141184\ntotal_rss_huge 0\ntotal_shmem 9084928\n" +
		"total_inactive_anon 8159232\ntotal_inactive_file 13488128\ntotal_active_file 23826432\n"
	v2MemoryStat = "anon 5\nfile 6\nkernel 1\nkernel_stack 1\nanon_thp 0\ninactive_anon 2\nactive_anon 3\ninactive_file 7\nactive_file 3\n"

	meminfo = "MemTotal:       24684084 kB\nMemFree:        24469464 kB\nMemAvailable:   24405484 kB\nBuffers:             632 kB\nCached:            44664 kB\n" +
		"SwapCached:            0 kB\nSwapTotal:             8 kB\nSwapFree:              7 kB\nShmem:                 9 kB\nSReclaimable:         10 kB\nHugePages_Total:       0\n"

	v2IOStat = "8:16 rbytes=1459200 wbytes=314773504 rios=192 wios=353 dbytes=0 dios=0\n8:0 \n" +
		"7:0 259:0 rbytes=90430464 wbytes=299008000 rios=8950 wios=1252 dbytes=50331648 dios=3021 cost.usage=5 use_delay=0\n"
	v1Blkio = "8:16 Read 4096\n8:16 Write 8192\n8:16 Sync 12288\n8:16 Async 0\n8:16 Discard 0\n8:16 Total 12288\n8:0 Read 5\n8:0 Write 6\nTotal 12299\n"

	diskstats = "   7       0 loop0 0 0 0 0 0 0 0 0 0 0 0\n" +
		" 254       0 vda 34625 7150 1532546 12768 5247 18951 1591808 3518 0 9400 16563 4643 46 309816 264 379 12\n"
	devices = "Character devices:\n  1 mem\n  4 /dev/vc/0\n\nBlock devices:\n  7 loop\n  8 sd\n 65 sd\n253 device-mapper\n"

	mountinfo = "22 27 0:21 / /proc rw,relatime - proc proc rw\n" +
		"36 35 98:0 /mnt1 /a\\040b\\134c rw,noatime master:1 shared:2 - ext3 /dev/root rw,errors=continue\n" +
		"41 31 0:38 /.. /x ro - cgroup2  rw\n"
	procCgroup = "9:name=systemd:/\n2:cpu,cpuacct:/docker/a:b\n0::/gone (deleted)\n"

	procStat    = "5926 (a) (b c) R 5920 5920 3634 0 -1 4194304 101 0 0 0 3 4 5 6 20 0 1 0 132901 3133440 382 18446744073709551615 1 2 3 0 0\n"
	kthreadStat = "2 (kthreadd) S 0 0 0 0 -1 2129984 0 0 0 0 0 1 0 0 20 0 1 0 0 0 0 18446744073709551615 0 0 0\n"

	stat = "cpu  2867 1 1845 259930 565 2 31 9 0 0\ncpu0 1095 0 821 130628 31 0 7 3 0 0\ncpu1 1771 0 1024 129301 534 0 23 5 0 0\n" +
		"intr 194141 0 0\nctxt 378551\nbtime 1795238821\nprocesses 5924\nprocs_running 2\n"

	netDev = "Inter-|   Receive                                                |  Transmit\n" +
		" face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n" +
		"    lo:    3193      29    0    0    0     0          0         0     3193      29    0    0    0     0       0          0\n" +
		"eth0:1:116212448    4589    0    0    0     0          0         0   388555    3486    0    0    0     0       0          0\n"
)
