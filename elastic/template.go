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
		method: http.MethodPost, path: "/_index_template/_simulate_index/" + url.PathEscape(index), // it knows no flat_settings
	}, nil, &answer)
	settings, mappings = map[string]any{}, answer.Template.Mappings
	flatten("", answer.Template.Settings, settings)
	if mappings == nil {
		mappings = map[string]any{}
	}
	return settings, mappings, err
}

// flatten puts nested settings under their full names.
func flatten(path string, nested, flat map[string]any) {
	for key, value := range nested {
		if inner, ok := value.(map[string]any); ok {
			flatten(path+key+".", inner, flat)
		} else {
			flat[path+key] = value
		}
	}
}
