//! The page that plays the load of the mesh, in a real browser.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use machine_emu::mesh::movie;
use sim::emulated::{CheckpointRun, Emulation, EmulationSetup, checkpoint};

/// Uses the page as a person does, and returns the result.
const HAND: &str = "<script>
setTimeout(() => {
  const told = {};
  const colours = () => {
    const data = mesh.getContext('2d').getImageData(0, 0, mesh.width, mesh.height).data;
    const seen = new Set();
    for (let i = 0; i < data.length; i += 4) seen.add(data[i] << 16 | data[i + 1] << 8 | data[i + 2]);
    return seen.size;
  };
  told.played = bucket !== 0 || part > 0;
  play(false);
  const busiest = sums[0].indexOf(Math.max(...sums[0]));
  bucket = busiest; show();
  told.colours = colours();
  const before = scale;
  mesh.dispatchEvent(new WheelEvent('wheel', { deltaY: -400, cancelable: true }));
  told.zoomed = scale / before;
  $('home').click();
  told.home = Math.abs(scale - before) < 1e-9;
  let best = links[0];
  for (const link of links) if (shade(link[0], link[1]) > shade(best[0], best[1])) best = link;
  choose((best[2] + best[4]) / 2, (best[3] + best[5]) / 2);
  told.chosen = chosen && chosen[0] === best[0] && chosen[1] === best[1];
  told.worms = document.querySelectorAll('#side tr').length - 1;
  from = busiest; until = busiest + 1; tell();
  told.fewer = document.querySelectorAll('#side tr').length - 1 <= told.worms;
  from = 0; until = B; tell(); show();
  const verdict = document.createElement('pre');
  verdict.id = 'verdict';
  verdict.hidden = true;
  verdict.textContent = JSON.stringify(told);
  document.body.append(verdict);
}, 1500);
</script>";

fn chromium(page: &Path, mode: &str) -> Vec<u8> {
    let profile = page.with_extension("profile");
    let run = Command::new("chromium")
        .args(["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars"])
        .args(["--window-size=1500,950", "--virtual-time-budget=4000"])
        .arg(format!("--user-data-dir={}", profile.display()))
        .arg(mode)
        .arg(format!("file://{}", page.display()))
        .output();
    let run = run.expect("chromium runs: it is in the Debian package of that name");
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    run.stdout
}

#[test]
fn the_page_loads_plays_zooms_and_lists_the_worms_of_a_link() {
    let machine = Emulation::new(&EmulationSetup::thesis(1)).unwrap();
    checkpoint(&machine, CheckpointRun { seed: 1, writers: 3, bytes: 200_000 }).unwrap();
    let page = machine.world().network().mesh(|mesh| movie(mesh, "a <test>")).flatten().unwrap();
    assert!(page.contains("<title>a &lt;test></title>") && !page.contains("{{"));
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let file = folder.join("mesh.html");
    fs::write(&file, page.replace("</body>", &format!("{HAND}</body>"))).unwrap();
    let dom = String::from_utf8(chromium(&file, "--dump-dom")).unwrap();
    let verdict = dom.split("id=\"verdict\"").nth(1).expect("the page's script ran to its end");
    let verdict = &verdict[..verdict.find("</pre>").unwrap()];
    println!("{verdict}");
    for wanted in ["\"played\":true", "\"home\":true", "\"chosen\":true", "\"fewer\":true"] {
        assert!(verdict.contains(wanted), "{wanted} in {verdict}");
    }
    let number = |name: &str| {
        let rest = verdict.split(&format!("\"{name}\":")).nth(1).unwrap();
        rest[..rest.find([',', '}']).unwrap()].parse::<f64>().unwrap()
    };
    assert!(number("zoomed") > 1.5 && number("worms") > 0.0 && number("colours") > 20.0);
    let picture = folder.join("mesh.png");
    chromium(&file, &format!("--screenshot={}", picture.display()));
    // A blank one of this size takes a few kilobytes.
    assert!(fs::metadata(&picture).unwrap().len() > 40_000);
}
