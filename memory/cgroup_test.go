package memory

import (
	"testing"
	"testing/fstest"
)

func tree(files map[string]string) fstest.MapFS {
	fsys := fstest.MapFS{}
	for name, text := range files {
		fsys[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return fsys
}

func TestCgroupLimit(t *testing.T) {
	tests := map[string]struct {
		files map[string]string
		want  int64 // 0: none
	}{
		"nothing mounted": {nil, 0},
		"v2 in a container": {map[string]string{
			"proc/self/cgroup":         "0::/\n",
			"sys/fs/cgroup/memory.max": "1073741824\n",
		}, 1 << 30},
		"v2 without a limit": {map[string]string{
			"proc/self/cgroup":         "0::/\n",
			"sys/fs/cgroup/memory.max": "max\n",
		}, 0},
		"v2 limited by an ancestor": {map[string]string{
			"proc/self/cgroup": "0::/kube.slice/pod1/c1\n",
			"sys/fs/cgroup/kube.slice/pod1/c1/memory.max": "max\n",
			"sys/fs/cgroup/kube.slice/pod1/memory.max":    "500\n",
			"sys/fs/cgroup/kube.slice/memory.max":         "9000\n",
		}, 500},
		"v2 path outside of the namespace": {map[string]string{
			"proc/self/cgroup":         "0::/../../other\n",
			"sys/fs/cgroup/memory.max": "700\n",
		}, 700},
		"v1 with the host's path": {map[string]string{
			"proc/self/cgroup":                           "12:cpu,cpuacct:/docker/abc\n11:memory:/docker/abc\n1:name=systemd:/docker/abc\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "268435456\n",
		}, 256 << 20},
		"v1 without a limit": {map[string]string{
			"proc/self/cgroup":                           "11:memory:/\n",
			"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712\n",
		}, 0},
		"hybrid: the memory controller on v1": {map[string]string{
			"proc/self/cgroup": "11:memory:/a\n0::/a\n",
			"sys/fs/cgroup/memory/a/memory.limit_in_bytes": "4096\n",
		}, 4096},
		"garbage": {map[string]string{
			"proc/self/cgroup":         "nonsense\n0::/\n",
			"sys/fs/cgroup/memory.max": "a lot\n",
		}, 0},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got, ok := cgroupLimit(tree(tt.files))
			if ok != (tt.want > 0) || ok && got != tt.want {
				t.Errorf("cgroupLimit = %d, %v, want %d", got, ok, tt.want)
			}
		})
	}
}

func TestAuto(t *testing.T) {
	limited := tree(map[string]string{"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.max": "1000000000\n"})
	tests := map[string]struct {
		cfg                          Config
		root                         fstest.MapFS
		limit, maxRecord, goMemLimit int64
	}{
		"no cgroup":            {Config{}, tree(nil), 512 << 20, 256 << 20, 512<<20 + 512<<20/10},
		"half of the cgroup's": {Config{}, limited, 500000000, 250000000, 900000000},
		"configured":           {Config{Limit: 1 << 20, MaxRecord: 1 << 10}, limited, 1 << 20, 1 << 10, 33 << 20},
		"record follows limit": {Config{Limit: 1 << 20}, tree(nil), 1 << 20, 1 << 19, 33 << 20},
		"no more than fits":    {Config{Limit: 900000000}, limited, 900000000, 450000000, 900000000},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			limit, maxRecord, goMemLimit := auto(tt.cfg, tt.root)
			if limit != tt.limit || maxRecord != tt.maxRecord || goMemLimit != tt.goMemLimit {
				t.Errorf("auto = %d, %d, %d, want %d, %d, %d", limit, maxRecord, goMemLimit, tt.limit, tt.maxRecord, tt.goMemLimit)
			}
		})
	}
}
