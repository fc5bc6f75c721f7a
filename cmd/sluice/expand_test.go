package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// Each address behind a name is a replica; it is asked for by the name, and its
// certificate must be the name's.
func TestANameStandsForAllItsReplicas(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"example.com", "other.example.org"} { // the first is in httptest's certificate
		replica := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if host, _, _ := net.SplitHostPort(r.Host); host != name {
				w.WriteHeader(http.StatusMisdirectedRequest)
			}
			fmt.Fprint(w, `{"state":"running"}`)
		}))
		defer replica.Close()
		roots := x509.NewCertPool()
		roots.AddCert(replica.Certificate())
		_, port, _ := net.SplitHostPort(replica.Listener.Addr().String())
		client := &adminClient{
			urls: []string{"https://" + name + ":" + port, "https://gone.example:1", "http://10.0.0.1:2"},
			http: &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{
				TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS12}, DisableKeepAlives: true,
			}},
		}
		client.expand(t.Context(), func(_ context.Context, network, host string) ([]netip.Addr, error) {
			if host == name && network == "ip4" { // nothing listens on the second
				return []netip.Addr{netip.MustParseAddr("127.0.0.9"), netip.MustParseAddr("127.0.0.1")}, nil
			}
			return nil, &net.DNSError{Err: "no such host", Name: host, IsNotFound: true}
		})
		want := []string{"https://127.0.0.1:" + port, "https://127.0.0.9:" + port, "https://gone.example:1", "http://10.0.0.1:2"}
		if strings.Join(client.urls, " ") != strings.Join(want, " ") {
			t.Fatalf("asked are %v, want %v", client.urls, want)
		}
		client.urls = want[:2]
		all := askStatus(t.Context(), client)
		if name == "example.com" && all[0].Error != "" || name != "example.com" && !strings.Contains(all[0].Error, "not "+name) {
			t.Errorf("%s: %q", name, all[0].Error)
		}
		if !strings.Contains(all[1].Error, "127.0.0.9") || (&statusSum{Replicas: all}).trouble() == nil {
			t.Errorf("the replica that is gone: %q", all[1].Error)
		}
	}
}
