package deliver

// OnPass has f called at the end of each pass.
func (c *Courier) OnPass(f func()) { c.passed = f }
