package admin

import (
	"net"
	"net/http"
	"sync"
)

// maxConnections is how many connections are open at once: all long polls, all
// pages, and some hundreds for probes and people. Each is one of the files that
// the process may have open, and Kafka and Elasticsearch need some too.
const maxConnections = maxPolls + maxViewers + 512

// doors bounds the open connections. Beyond the limit one that idles, or has not
// asked for anything yet, makes room for a new one, so that whoever only holds
// connections keeps no probe out; where all are busy the new one is closed.
type doors struct {
	most int
	mu   sync.Mutex
	open map[net.Conn]http.ConnState
}

// changed fits http.Server.ConnState.
func (d *doors) changed(c net.Conn, state http.ConnState) {
	d.mu.Lock()
	if state == http.StateClosed || state == http.StateHijacked {
		delete(d.open, c)
		d.mu.Unlock()
		return
	}
	d.open[c] = state
	var leaves net.Conn
	if len(d.open) > d.most {
		leaves = c
		for other, state := range d.open {
			if other != c && state != http.StateActive {
				leaves = other
				break
			}
		}
		delete(d.open, leaves)
	}
	d.mu.Unlock()
	if leaves != nil {
		_ = leaves.Close() // its server sees that, and says so once more
	}
}
