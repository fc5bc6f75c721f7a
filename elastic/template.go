package elastic

import (
	"context"
	"net/http"
	"net/url"
)

// TemplateFor returns what the composable index templates would give a new index
// of this name: settings by their full names, such as index.number_of_shards, and
// mappings; both are empty where none matches. It needs the cluster privilege
// manage_index_templates.
func (c *Client) TemplateFor(ctx context.Context, index string) (settings, mappings map[string]any, err error) {
	var answer struct {
		Template struct {
			Settings map[string]any `json:"settings"`
			Mappings map[string]any `json:"mappings"`
		} `json:"template"`
	}
	err = c.send(ctx, "asking which index template is for "+index+" (needs the cluster privilege manage_index_templates)", request{
		method: http.MethodPost, path: "/_index_template/_simulate_index/" + url.PathEscape(index), query: url.Values{"flat_settings": {"true"}},
	}, nil, &answer)
	settings, mappings = answer.Template.Settings, answer.Template.Mappings
	if settings == nil {
		settings = map[string]any{}
	}
	if mappings == nil {
		mappings = map[string]any{}
	}
	return settings, mappings, err
}
