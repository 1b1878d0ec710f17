package lease

import "time"

// Impatient makes p notice soon that the machine does not answer.
func (p *SSH) Impatient() { p.link.every, p.link.within = 100*time.Millisecond, 5*time.Second }
