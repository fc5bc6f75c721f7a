package partition

// Place is where a table puts a customer, and by which rule.
type Place struct {
	Slot      int    // of the customer's hash
	Override  string // the key of Overrides that decides; "": the slot does
	Partition string // its name
}

// Place returns a customer's place; false: the stream has no partitions yet.
// Routing does not need it: it is for those who want to know why.
func (t *Table) Place(customer string) (Place, bool) {
	if len(t.SlotMap) == 0 {
		return Place{}, false
	}
	r := compile(t, nil)
	p := Place{Slot: Slot([]byte(customer), len(t.SlotMap)), Partition: r.names[r.place([]byte(customer))]}
	if key := Literal(customer); t.Overrides[key] != "" {
		p.Override = key
		return p, true
	}
	for i := range r.globs {
		if r.globs[i].matches([]byte(customer)) {
			p.Override = r.globs[i].text
			break
		}
	}
	return p, true
}
