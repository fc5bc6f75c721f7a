package config

import _ "embed" // for template.yaml

//go:embed template.yaml
var template string

// Template returns a commented configuration to start from: every key, those
// that nobody leaves as they are to be edited, all others commented out with
// their defaults.
func Template() string { return template }
