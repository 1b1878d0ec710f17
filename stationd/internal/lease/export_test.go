package lease

import "time"

// Until is how long a lease of p holds from now on.
func (p *SSH) Until() time.Time { return p.until() }

// Impatient makes p notice soon that the machine does not answer.
func (p *SSH) Impatient() { p.link.every, p.link.within = 100*time.Millisecond, 5*time.Second }
