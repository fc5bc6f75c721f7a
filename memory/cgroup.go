package memory

import (
	"bufio"
	"bytes"
	"io/fs"
	"os"
	"path"
	"strconv"
	"strings"
)

// defaultLimit is the budget where neither the configuration nor a cgroup
// names one.
const defaultLimit = 512 << 20

// beside is what Go's part of the process takes beside the budget, at least.
const beside = 32 << 20

// CgroupLimit returns the memory limit, in bytes, that the process's cgroup
// and those above it (versions 1 and 2) impose. False: there is none that can
// be seen.
func CgroupLimit() (int64, bool) { return cgroupLimit(os.DirFS("/")) }

// Auto returns what the `auto` values of cfg become, in bytes: the budget's
// limit, the largest record, and what GOMEMLIMIT should be: 90 % of the cgroup's
// limit, and, where cfg names a limit or there is no cgroup's, at most that much
// and what else a process takes. What the collector leaves lying about would
// else be as much as the budget again.
func Auto(cfg Config) (limit, maxRecord, goMemLimit int64) { return auto(cfg, os.DirFS("/")) }

func auto(cfg Config, root fs.FS) (limit, maxRecord, goMemLimit int64) {
	cgroup, limited := cgroupLimit(root)
	switch {
	case cfg.Limit > 0:
		limit = int64(cfg.Limit)
	case limited:
		limit = max(cgroup/2, 1)
	default:
		limit = defaultLimit
	}
	if cfg.Limit > 0 || !limited {
		goMemLimit = limit + max(limit/10, beside)
	}
	if limited && (goMemLimit == 0 || cgroup/10*9 < goMemLimit) {
		goMemLimit = cgroup / 10 * 9
	}
	maxRecord = limit / 2
	if cfg.MaxRecord > 0 {
		maxRecord = int64(cfg.MaxRecord)
	}
	return limit, maxRecord, goMemLimit
}

// cgroupLimit finds the lowest limit between the process's cgroup and the root
// of what is mounted. In a container the path of /proc/self/cgroup is often
// the host's and does not exist inside, where the mount's root is the
// process's own group; going up from the path finds both.
func cgroupLimit(root fs.FS) (limit int64, found bool) {
	groups, err := fs.ReadFile(root, "proc/self/cgroup")
	if err != nil {
		return 0, false
	}
	for lines := bufio.NewScanner(bytes.NewReader(groups)); lines.Scan(); {
		// hierarchy:controllers:path; version 2 has hierarchy 0 and no controllers
		parts := strings.SplitN(lines.Text(), ":", 3)
		if len(parts) != 3 {
			continue
		}
		var mount, file string
		switch {
		case parts[0] == "0" && parts[1] == "":
			mount, file = "sys/fs/cgroup", "memory.max"
		case hasController(parts[1], "memory"):
			mount, file = "sys/fs/cgroup/memory", "memory.limit_in_bytes"
		default:
			continue
		}
		for group := path.Clean("/" + parts[2]); ; group = path.Dir(group) {
			if n, ok := readLimit(root, path.Join(mount, group, file)); ok && (!found || n < limit) {
				limit, found = n, true
			}
			if group == "/" {
				break
			}
		}
	}
	return limit, found
}

func hasController(list, name string) bool {
	for c := range strings.SplitSeq(list, ",") {
		if c == name {
			return true
		}
	}
	return false
}

// readLimit reads one limit file. "max" (version 2) and the largest page count
// in bytes (version 1, near 2^63) mean none.
func readLimit(root fs.FS, file string) (int64, bool) {
	text, err := fs.ReadFile(root, file)
	if err != nil {
		return 0, false
	}
	n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	return n, err == nil && n > 0 && n < 1<<62
}
